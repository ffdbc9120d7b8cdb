//! What a machine says that may have no CUDA. These tests hold with and without.

use gemel_core::error::DeviceError;
use gemel_cuda::{CudaDevice, CudaOptions, enumerate};

#[test]
fn a_machine_has_devices_or_a_reason() {
    match enumerate() {
        Ok(devices) => {
            assert!(!devices.is_empty(), "no device is a reason, not a list");
            for device in devices {
                assert!(device.compute >= (7, 5), "{device}");
                assert_eq!(device.caps.warp, Some(32), "{device}");
            }
        }
        Err(reason) => {
            assert_eq!(reason.lines().count(), 1, "one line: {reason}");
            let names_something = ["libcuda", "libnvrtc", "driver", "compute capability"]
                .iter()
                .any(|name| reason.contains(name));
            assert!(names_something, "what is missing: {reason}");
        }
    }
}

#[test]
fn opening_says_why_not() {
    // No machine has so many.
    match CudaDevice::open(&CudaOptions::new("cuda:4000")) {
        Err(DeviceError::NotFound { wanted, available }) => {
            assert_eq!(wanted, "cuda:4000", "what was asked for");
            match enumerate() {
                Ok(devices) => assert!(available.contains(&devices[0].name), "{available}"),
                Err(reason) => assert!(available.contains(&reason), "{available}"),
            }
        }
        other => panic!("{other:?}"),
    }
}
