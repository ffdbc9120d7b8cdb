// Arithmetic on four columns of four rows at a time.
#import tile

// Values of the codes of four columns.
fn product_decode(m: mat4x4<f32>, scale: Scale) -> mat4x4<f32> {
    return mat4x4<f32>(
        fma(m[0], scale.a, scale.b),
        fma(m[1], scale.a, scale.b),
        fma(m[2], scale.a, scale.b),
        fma(m[3], scale.a, scale.b),
    );
}

// `sum + m * v`, column by column.
fn product_add(m: mat4x4<f32>, v: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return fma(m[3], v.wwww, fma(m[2], v.zzzz, fma(m[1], v.yyyy, fma(m[0], v.xxxx, sum))));
}
