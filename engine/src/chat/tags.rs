//! The `generation` tag.
//!
//! Training tools mark the assistant's words with `{% generation %} ... {% endgeneration %}`. It has no
//! effect on the text, but no template engine knows it, so it becomes a condition that is always true.

use std::borrow::Cow;

/// The source with each `generation` tag replaced.
pub(super) fn without_generation(source: &str) -> Cow<'_, str> {
    if !source.contains("endgeneration") {
        return Cow::Borrowed(source);
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let n_bytes = match tag.as_bytes().get(1) {
            Some(b'#') => tag.find("#}").map_or(tag.len(), |end| end + 2),
            Some(b'{') => tag_len(tag, "}}"),
            Some(b'%') => tag_len(tag, "%}"),
            _ => 1,
        };
        let (tag, after) = tag.split_at(n_bytes);
        rest = after;
        let inner = tag.strip_prefix("{%").and_then(|t| t.strip_suffix("%}"));
        let name = inner.map(|inner| inner.trim_matches(['-', '+']).trim());
        match name {
            Some("generation") => out.push_str(&tag.replacen("generation", "if true", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            Some("raw") => {
                // Nothing in here is a tag, up to the one that ends it.
                let end = rest.find("endraw").unwrap_or(rest.len());
                out.push_str(tag);
                out.push_str(&rest[..end]);
                rest = &rest[end..];
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    Cow::Owned(out)
}

/// Length of a tag up to and with its end, passing over string literals.
fn tag_len(tag: &str, end: &str) -> usize {
    let mut quote = None;
    let mut escaped = false;
    for (i, c) in tag.char_indices().skip(2) {
        if escaped {
            escaped = false;
        } else if let Some(open) = quote {
            escaped = c == '\\';
            if c == open {
                quote = None;
            }
        } else if c == '"' || c == '\'' {
            quote = Some(c);
        } else if tag[i..].starts_with(end) {
            return i + end.len();
        }
    }
    tag.len()
}

#[cfg(test)]
mod tests {
    use super::without_generation;

    #[test]
    fn only_tags_are_replaced() {
        let check = |source: &str, want: &str| assert_eq!(without_generation(source), want);
        check("plain {{ x }}", "plain {{ x }}");
        check(
            "a{%- generation -%}b{{ '{% generation %}' }}{% endgeneration %}c",
            "a{%- if true -%}b{{ '{% generation %}' }}{% endif %}c",
        );
        check(
            "{# {% generation %} #}{%generation%}{%+ endgeneration +%}",
            "{# {% generation %} #}{%if true%}{%+ endif +%}",
        );
        check(
            "{% raw %}{% generation %}{% endraw %}{% generation %}{% endgeneration %}",
            "{% raw %}{% generation %}{% endraw %}{% if true %}{% endif %}",
        );
        check(
            "{% set generation = \"\\\"endgeneration\" %}{ {% generation",
            "{% set generation = \"\\\"endgeneration\" %}{ {% generation",
        );
    }
}
