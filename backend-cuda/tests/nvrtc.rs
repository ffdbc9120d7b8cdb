//! NVRTC compiles embedded kernels for every architecture, without a GPU.
//!
//! Needs NVRTC (a CUDA toolkit, or the library's path in `$GEMEL_NVRTC`); says so and passes where there is none.

use gemel_core::error::DeviceError;
use gemel_core::op::{Caps, DeviceClass, Launch, Op as _, Operands};
use gemel_core::ops::rms_norm::RmsNorm;
use gemel_core::tensor::TensorDesc;
use gemel_cuda::check;

fn launch() -> Launch {
    let caps = Caps {
        class: DeviceClass::Discrete,
        ..gemel_core::device::reference_caps()
    };
    let (x, w) = (TensorDesc::f32([4, 64]), TensorDesc::f32([64]));
    let operands = Operands {
        inputs: &[&x, &w],
        inouts: &[],
        outputs: &[&x],
    };
    let mut launches = RmsNorm { eps: 1e-5 }
        .launches(operands, &caps)
        .expect("launches");
    launches.list.remove(0)
}

#[test]
fn kernels_compile_for_every_architecture() {
    for compute in [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0)] {
        match check(RmsNorm::NAME, &launch(), compute) {
            Ok(cubin) => assert!(cubin.starts_with(b"\x7fELF"), "{compute:?} is no cubin"),
            Err(DeviceError::NotFound { available, .. }) => {
                println!("skipped: {available}");
                return;
            }
            Err(error) => panic!("{compute:?}: {error}"),
        }
    }
}

#[test]
fn devices_of_the_future_get_the_portable_form() {
    match check(RmsNorm::NAME, &launch(), (99, 0)) {
        Ok(ptx) => {
            let text = String::from_utf8_lossy(&ptx);
            assert!(text.contains(".visible .entry rms_norm("), "{text}");
            assert_eq!(ptx.last(), Some(&0), "the driver looks for the end");
        }
        Err(DeviceError::NotFound { available, .. }) => println!("skipped: {available}"),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn errors_name_file_and_line() {
    let mut wrong = launch();
    // The file wants a constant that is not there.
    wrong.spec.consts.retain(|(name, _)| *name != "LANES");
    match check(RmsNorm::NAME, &wrong, (8, 0)) {
        Err(DeviceError::NotFound { available, .. }) => println!("skipped: {available}"),
        Err(DeviceError::Compile { kernel, log }) => {
            assert_eq!(kernel, "rms_norm/rms_norm[THREADS=256]", "which");
            assert!(
                log.contains("kernels/rms_norm.cu(") && log.contains("LANES"),
                "{log}"
            );
        }
        other => panic!("{other:?}"),
    }
}
