//! Chat templates against what Python's Jinja prints, and against templates that mean harm.

use gemel_engine::chat::{
    BUILT_IN, ChatError, ChatTemplate, Message, RenderOptions, parse_tool_arguments, strip_bos,
    template_source,
};
use serde_json::{Map, Value, json};
use std::time::{Duration, UNIX_EPOCH};

/// A message from its JSON form.
fn message(value: &Value) -> Message {
    let mut map = value.as_object().expect("a message").clone();
    let mut text = |key: &str| match map.shift_remove(key) {
        Some(Value::String(text)) => Some(text),
        Some(other) => panic!("{key} is {other}"),
        None => None,
    };
    let mut message = Message::new(text("role").expect("a role"), "");
    message.reasoning_content = text("reasoning_content");
    message.tool_call_id = text("tool_call_id");
    message.name = text("name");
    message.content = map.shift_remove("content").expect("a content");
    message.tool_calls = map.shift_remove("tool_calls");
    message.extra = map;
    message
}

fn messages(value: &Value) -> Vec<Message> {
    value
        .as_array()
        .expect("messages")
        .iter()
        .map(message)
        .collect()
}

#[test]
fn features_print_what_python_prints() {
    let golden: Value =
        serde_json::from_str(include_str!("golden/chat/features.json")).expect("JSON");
    let now = UNIX_EPOCH + Duration::from_secs(golden["now"].as_u64().expect("seconds"));
    let cases = golden["cases"].as_array().expect("cases");
    let mut wrong = Vec::new();
    for case in cases {
        let name = case["name"].as_str().expect("a name");
        let source = case["template"].as_str().expect("a template");
        let mut extra = case["options"].as_object().expect("options").clone();
        let prompt = extra.shift_remove("add_generation_prompt");
        let options = RenderOptions {
            add_generation_prompt: prompt.is_none_or(|p| p.as_bool().expect("a boolean")),
            tools: extra.shift_remove("tools"),
            extra,
            now: Some(now),
        };
        let got = ChatTemplate::new(source, "<bos>", "<eos>")
            .and_then(|template| template.render(&messages(&case["messages"]), &options));
        let good = match &got {
            Ok(text) => case["text"] == json!(text),
            Err(ChatError::Refused { message }) => case["refused"] == json!(message),
            Err(_) => case.get("fails").is_some(),
        };
        if !good {
            let want = ["text", "refused", "fails"].map(|key| case.get(key));
            let want = want.into_iter().flatten().next();
            wrong.push(format!("{name}\n   got {got:?}\n  want {want:?}"));
        }
    }
    assert!(cases.len() > 120, "only {} cases", cases.len());
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn a_published_template_prints_its_golden_text() {
    let golden: Value =
        serde_json::from_str(include_str!("golden/chat/smollm2.json")).expect("JSON");
    let source = golden["template"].as_str().expect("a template");
    let template =
        ChatTemplate::new(source, "<|im_start|>", "<|im_end|>").expect("a good template");
    let conversations = golden["conversations"].as_array().expect("conversations");
    assert_eq!(conversations.len(), 7);
    for case in conversations {
        for (key, add_generation_prompt) in [("text", true), ("text_no_generation_prompt", false)] {
            let options = RenderOptions {
                add_generation_prompt,
                ..RenderOptions::default()
            };
            let got = template.render(&messages(&case["messages"]), &options);
            assert_eq!(
                got.as_deref(),
                Ok(case[key].as_str().expect("a text")),
                "{}",
                case["name"]
            );
        }
    }
}

#[test]
fn templates_are_found_by_key() {
    let lookup = |key: &str| match key {
        "tokenizer.chat_template" => Some("default".to_owned()),
        "tokenizer.chat_template.tool_use" => Some("tools".to_owned()),
        "tokenizer.chat_template.blank" => Some(" \n".to_owned()),
        _ => None,
    };
    assert_eq!(template_source(lookup, None).as_deref(), Ok("default"));
    assert_eq!(
        template_source(lookup, Some("tool_use")).as_deref(),
        Ok("tools")
    );
    for variant in [Some("rag"), Some("blank")] {
        let error = template_source(lookup, variant).expect_err("none");
        let name = variant.expect("a variant");
        assert!(
            error
                .to_string()
                .contains(&format!("tokenizer.chat_template.{name}")),
            "{error}"
        );
    }
    let error = template_source(|_| None, None)
        .expect_err("none")
        .to_string();
    for part in [
        "tokenizer.chat_template",
        "--chat-template FILE",
        "chatml, gemma, llama3",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = ChatTemplate::built_in("alpaca", "", "").expect_err("no such one");
    assert!(
        error.to_string().contains("\"alpaca\"") && error.to_string().contains("llama3"),
        "{error}"
    );
    for (name, _) in BUILT_IN {
        ChatTemplate::built_in(name, "<s>", "</s>").expect("a built-in template");
    }
}

#[test]
fn exactly_one_beginning() {
    assert_eq!(strip_bos("<bos>a", "<bos>"), "a");
    assert_eq!(strip_bos("a<bos>", "<bos>"), "a<bos>");
    assert_eq!(strip_bos("<bos><bos>", "<bos>"), "<bos>");
    assert_eq!(strip_bos("a", ""), "a");
}

#[test]
fn tool_arguments_become_objects() {
    let mut calls = json!([
        {"type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2]}"}},
        {"name": "g", "arguments": "{}"},
        {"function": {"name": "h", "arguments": {"x": 1}}},
        {"function": {"name": "i", "arguments": "not json"}},
        {"function": {"name": "j", "arguments": "3"}},
        {"function": {"name": "k"}},
        7,
    ]);
    parse_tool_arguments(&mut calls);
    let arguments = |i: usize| calls[i].pointer("/function/arguments").cloned();
    assert_eq!(
        arguments(0).expect("arguments").to_string(),
        r#"{"b":1,"a":[2]}"#
    );
    assert_eq!(calls[1]["arguments"], json!({}));
    assert_eq!(arguments(2), Some(json!({"x": 1})));
    assert_eq!(arguments(3), Some(json!("not json")));
    assert_eq!(arguments(4), Some(json!("3")));
    parse_tool_arguments(&mut Value::Null);
}

#[test]
fn errors_say_whose_fault_and_where() {
    let user = [Message::new("user", "x")];
    let run = |source: &str| {
        let template = ChatTemplate::new(source, "", "")?;
        template.render(&user, &RenderOptions::default())
    };
    match run("a\n{% if %}") {
        Err(ChatError::Syntax { line: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
    match run("{% nosuchtag %}") {
        Err(ChatError::Syntax { line: 1, message }) => {
            assert!(message.contains("nosuchtag"), "{message}");
        }
        other => panic!("{other:?}"),
    }
    match run("\n\n{{ messages[0].content + 3 }}") {
        Err(error @ ChatError::Failed { line: 3, .. }) => {
            assert!(!error.is_request_error(), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let error = run("{{ raise_exception('no ' ~ messages[0].role) }}").expect_err("refused");
    assert!(error.is_request_error(), "{error}");
    assert_eq!(
        error.to_string(),
        "the chat template refuses these messages: no user"
    );
    // Other templates and files are out of reach.
    for source in [
        "{% include '/etc/hostname' %}",
        "{% extends 'base' %}",
        "{% import 'x' as y %}{{ y }}",
    ] {
        assert!(
            matches!(run(source), Err(ChatError::Failed { .. })),
            "{source}"
        );
    }
}

/// Whoever made the file wrote the program: it must end, in bounded time and memory, with an error.
#[test]
fn templates_that_mean_harm_end_with_an_error() {
    let user = [Message::new("user", "x")];
    let many = |n: usize, piece: &str| piece.repeat(n);
    let nested = |then: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(99999) %}}{{% for j in range(99999) %}}\
             {{% set ns.x = [ns.x] %}}{then}{{% endfor %}}{{% endfor %}}"
        )
    };
    let hostile = [
        ("endless loop", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned()),
        ("endless macro", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned()),
        ("two macros", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned()),
        ("recursive loop", "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}".to_owned()),
        ("self include", "{% include 'chat_template' %}".to_owned()),
        ("doubled string", "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}".to_owned()),
        ("added string", "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}".to_owned()),
        ("doubled list", "{% set ns = namespace(x=[1]) %}{% for i in range(26) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x | length }}{{ ns.x }}".to_owned()),
        ("long string", "{{ 'x' * 99999999999 }}".to_owned()),
        ("long output", "{% for i in range(99999) %}{{ 'x' * 100 }}{% endfor %}".to_owned()),
        ("replaced string", "{% set x = 'a' * 100000 %}{% set x = x.replace('a', x) %}{{ x.replace('a', x) }}".to_owned()),
        ("joined string", "{% set x = 'a' * 1000000 %}{{ x.join(range(99999)) }}".to_owned()),
        ("indented JSON", "{% set ns = namespace(x=1) %}{% for i in range(150) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson(indent=64) }}".to_owned()),
        ("wide value", "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x, ns.x] %}{% endfor %}{{ ns.x }}".to_owned()),
        ("deep value", nested("")),
        ("deep value printed", format!("{}{{{{ ns.x }}}}", nested("{% if i * 99999 + j > 60000 %}{{ ns.x | string | length }}{% endif %}"))),
        ("deep value compared", nested("{% if j > 40000 %}{{ ns.x == ns.x }}{% endif %}")),
        ("deep value as JSON", nested("{% if j > 40000 %}{{ ns.x | tojson }}{% endif %}")),
        ("deep parentheses", format!("{{{{ {}1{} }}}}", many(50_000, "("), many(50_000, ")"))),
        ("deep lists", format!("{{{{ {}1{} }}}}", many(50_000, "["), many(50_000, "]"))),
        ("deep blocks", format!("{}{}", many(5_000, "{% if x %}"), many(5_000, "{% endif %}"))),
        ("long chain of attributes", format!("{{{{ x{} }}}}", many(60_000, ".a"))),
        ("long chain of elif", format!("{{% if x %}}{}{{% endif %}}{{{{ x.y }}}}", many(9_000, "{% elif x %}"))),
        ("too long", many(300_000, " ")),
        ("long refusal", "{{ raise_exception('x' * 5000000) }}".to_owned()),
    ];
    for (name, source) in hostile {
        let result = ChatTemplate::new(&source, "", "")
            .and_then(|template| template.render(&user, &RenderOptions::default()));
        let error = result.err().unwrap_or_else(|| panic!("{name} gave a text"));
        let text = error.to_string();
        assert!(
            text.len() < 10_000,
            "{name}: an error of {} bytes",
            text.len()
        );
        assert!(
            !matches!(error, ChatError::NoThread { .. }),
            "{name}: {text}"
        );
    }
    // The budget grows with the conversation, and the stack must hold the deepest value it can pay for.
    let talk = vec![Message::new("user", "x"); 2000];
    let template = ChatTemplate::new(&nested(""), "", "").expect("a template");
    match template.render(&talk, &RenderOptions::default()) {
        Err(ChatError::TooMuchWork { fuel }) => assert!(fuel > 3_000_000, "{fuel}"),
        other => panic!("{other:?}"),
    }
    // Chains that are only long must not exhaust the stack; whether they render is all the same.
    for operator in [
        " + 1",
        " and 1",
        " or 0",
        " | abs",
        " if 1 else 1",
        " == 1",
        "[1:]",
    ] {
        let source = format!("{{{{ 1{} }}}}", operator.repeat(120_000 / operator.len()));
        let result = ChatTemplate::new(&source, "", "");
        let _ = result.map(|template| template.render(&user, &RenderOptions::default()));
    }
}

#[test]
fn long_conversations_stay_within_the_limits() {
    let (_, gemma) = BUILT_IN[1];
    let template = ChatTemplate::new(gemma, "<bos>", "").expect("a built-in template");
    let talk: Vec<Message> = (0..3000)
        .map(|i| {
            Message::new(
                if i % 2 == 0 { "user" } else { "assistant" },
                format!("turn {i}"),
            )
        })
        .collect();
    let text = template
        .render(&talk, &RenderOptions::default())
        .expect("a prompt");
    assert!(
        text.contains("turn 2999<end_of_turn>\n<start_of_turn>model\n"),
        "the end is there"
    );
    let book = [Message::new("user", "word ".repeat(2_000_000))];
    let text = template
        .render(&book, &RenderOptions::default())
        .expect("a prompt");
    assert!(text.len() > 9_999_000, "ten megabytes are there");
}

#[test]
fn extra_variables_cannot_replace_the_messages() {
    let template = ChatTemplate::new(
        "{{ messages | length }}{{ bos_token }}{{ mode }}",
        "<s>",
        "",
    )
    .expect("good");
    let mut extra = Map::new();
    extra.insert("messages".to_owned(), json!([]));
    extra.insert("mode".to_owned(), json!("m"));
    let options = RenderOptions {
        extra,
        ..RenderOptions::default()
    };
    let got = template.render(&[Message::new("user", "x")], &options);
    assert_eq!(got.as_deref(), Ok("1<s>m"));
}
