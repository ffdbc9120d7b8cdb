// Activations of gated units. KIND is a constant, so one case remains.
#import numeric

fn activation(x: f32) -> f32 {
    // Arguments are clamped where the factor has long reached its limit.
    let c = clamp(x, -128.0, 128.0);
    switch KIND {
        case 0u: { // swiglu
            return x * sigmoid(c);
        }
        case 1u: { // geglu: (1 + tanh(z)) / 2 = sigmoid(2 z); the factor is 2 sqrt(2 / pi)
            return x * sigmoid(1.5957691216 * (c + 0.044715 * c * c * c));
        }
        case 2u: { // geglu_erf
            return x * half_erfc_neg(c * 0.70710678118);
        }
        case 3u: { // geglu_quick
            return x * sigmoid(1.702 * c);
        }
        case 4u: { // reglu
            return max(x, 0.0);
        }
        default: { // sigmoid
            return sigmoid(c);
        }
    }
}
