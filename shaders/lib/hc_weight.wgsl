// The factor of a result in a stream of a hyper-connected residual.

fn hc_weight(inject: f32, scale: f32) -> f32 {
    // The argument is clamped where the factor has long reached its limit.
    return 2.0 * sigmoid(clamp(inject * scale, -128.0, 128.0));
}
