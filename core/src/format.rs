//! Block formats: how the bytes of each type decode to f32, and how cache types are encoded.
