//! From messages to prompt text: a model's own Jinja template, rendered as Python renders it.
//!
//! Model authors write these templates for Python's Jinja and test them there, so what counts is
//! what Python prints: its JSON spacing, its string methods, `True` and `None`.
//!
//! A template is a program by whoever made the file. It gets a budget of steps and bytes, a recursion
//! limit, an output limit and a stack of its own; it sees the messages and the date, and nothing else
//! of the host. One gap is known: inside the template engine `~` and some filters turn a list into
//! text before they pay for it, and lists added to themselves are not paid for at all, so a template
//! written for the purpose can still use up time and memory.
//!
//! Python's `%` on strings and the names `varargs` and `kwargs` in macros are not supported.
//!
//! ```
//! use gemel_engine::chat::{ChatTemplate, Message, RenderOptions};
//!
//! # fn main() -> Result<(), gemel_engine::chat::ChatError> {
//! let template = ChatTemplate::built_in("chatml", "", "<|im_end|>")?;
//! let prompt = template.render(&[Message::new("user", "Hello")], &RenderOptions::default())?;
//! assert_eq!(prompt, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
//! # Ok(())
//! # }
//! ```

mod json;
mod methods;
mod strftime;
mod tags;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value};
use serde_json::{Map, Value as Json};
use std::io;
use std::time::SystemTime;

/// The templates that come with the engine, by name, for files that have none.
pub const BUILT_IN: [(&str, &str); 3] = [
    ("chatml", include_str!("chat/chatml.jinja")),
    ("gemma", include_str!("chat/gemma.jinja")),
    ("llama3", include_str!("chat/llama3.jinja")),
];

/// The GGUF key of a model's template; a variant NAME has `tokenizer.chat_template.NAME`.
pub const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Longest template, in bytes: several times the longest published ones. Compiling costs more than linear
/// time in the length of an expression, so this is not generous.
const MAX_SOURCE_BYTES: usize = 128 * 1024;
/// Work that any template may do, in instructions or in units of 64 bytes.
const BASE_FUEL: u64 = 500_000;
/// Further work per message: templates look at each message a few times.
const FUEL_PER_MESSAGE: u64 = 2_000;
/// Most work, whatever the number of messages.
const MAX_FUEL: u64 = 4_000_000;
/// Longest output that any template may write, in bytes.
const BASE_OUTPUT_BYTES: usize = 1024 * 1024;
/// Nesting of macros, loops and values.
const RECURSION_LIMIT: usize = 200;
/// Stack for compiling and rendering. A template can build values nested as deep as its fuel allows,
/// and these are printed and freed recursively, some hundred bytes a level. Only the pages that are
/// touched become memory.
const STACK_BYTES: usize = 512 * 1024 * 1024;
/// Longest text taken over from a template's own error.
const MAX_MESSAGE_CHARS: usize = 2_000;

/// Why there is no prompt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The file has no such template.
    #[error(
        "the model file has no {key}; give a template with --chat-template FILE, or one of the \
         built-in ones with --chat-template NAME: {}",
        built_in_names()
    )]
    Missing {
        /// The GGUF key that was looked for.
        key: String,
    },
    /// There is no built-in template of this name.
    #[error(
        "no built-in chat template is called {name:?}; there are {}",
        built_in_names()
    )]
    UnknownBuiltIn {
        /// The name asked for.
        name: String,
    },
    /// The template's source is longer than any real one.
    #[error("the chat template has {n_bytes} bytes; at most {limit} are accepted")]
    SourceTooLong {
        /// Length of the source.
        n_bytes: usize,
        /// Longest accepted.
        limit: usize,
    },
    /// The template is not valid Jinja.
    #[error(
        "the chat template has an error in line {line}: {message}; try another with --chat-template"
    )]
    Syntax {
        /// Line of the template, counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// The template itself refuses these messages: the request's fault.
    #[error("the chat template refuses these messages: {message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template failed on these messages.
    #[error("the chat template failed in line {line}: {message}")]
    Failed {
        /// Line of the template, counted from 1; 0 if unknown.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The template ran for too long or used too much memory.
    #[error(
        "the chat template did more than {fuel} steps without an end; try another with --chat-template"
    )]
    TooMuchWork {
        /// The budget, in steps.
        fuel: u64,
    },
    /// The template wrote more than the messages can explain.
    #[error("the chat template wrote more than {limit} bytes; try another with --chat-template")]
    OutputTooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The system gave no thread to render in.
    #[error("no thread to render the chat template in: {message}")]
    NoThread {
        /// The system's words.
        message: String,
    },
}

impl ChatError {
    /// True if the request is at fault, not the template or the host.
    pub fn is_request_error(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }
}

fn built_in_names() -> String {
    BUILT_IN.map(|(name, _)| name).join(", ")
}

/// One message of a conversation. Templates see the fields under the names used here; fields that
/// are `None` are undefined to them, and a null content is Python's `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `system`, `user`, `assistant`, `tool`, or what else the template knows.
    pub role: String,
    /// A string; or a list of parts such as `{"type": "text", "text": ...}`; or null.
    pub content: Json,
    /// What the model thought before it answered.
    pub reasoning_content: Option<String>,
    /// Calls that the assistant made: `[{"type": "function", "function": {"name", "arguments"}}]`.
    /// Most templates want arguments as an object; see [`parse_tool_arguments`].
    pub tool_calls: Option<Json>,
    /// Of a tool's result: the call that it answers.
    pub tool_call_id: Option<String>,
    /// Of a tool's result: the tool's name.
    pub name: Option<String>,
    /// Any further fields.
    pub extra: Map<String, Json>,
}

impl Message {
    /// A message that is text and nothing else.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self {
            role: role.into(),
            content: Json::String(content.into()),
            reasoning_content: None,
            tool_calls: None,
            tool_call_id: None,
            name: None,
            extra: Map::new(),
        }
    }

    fn to_json(&self) -> Json {
        let mut map = Map::new();
        map.insert("role".to_owned(), Json::String(self.role.clone()));
        map.insert("content".to_owned(), self.content.clone());
        let text = |text: &Option<String>| text.clone().map(Json::String);
        let optional = [
            ("reasoning_content", text(&self.reasoning_content)),
            ("tool_calls", self.tool_calls.clone()),
            ("tool_call_id", text(&self.tool_call_id)),
            ("name", text(&self.name)),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                map.insert(key.to_owned(), value);
            }
        }
        map.extend(self.extra.clone());
        Json::Object(map)
    }
}

/// Turns arguments that came as a JSON string, as in the `OpenAI` protocol, into the object that most
/// templates want. Arguments that are no JSON object stay as they are.
pub fn parse_tool_arguments(tool_calls: &mut Json) {
    for call in tool_calls.as_array_mut().into_iter().flatten() {
        let arguments = match call.get_mut("function") {
            Some(function) => function.get_mut("arguments"),
            None => call.get_mut("arguments"),
        };
        if let Some(arguments) = arguments
            && let Some(text) = arguments.as_str()
            && let Ok(parsed @ Json::Object(_)) = serde_json::from_str(text)
        {
            *arguments = parsed;
        }
    }
}

/// What else a template sees.
#[derive(Clone, Debug, PartialEq)]
pub struct RenderOptions {
    /// End with the opening of the assistant's turn. Default true.
    pub add_generation_prompt: bool,
    /// The tools that the model may call: a list of function descriptions. Default none.
    pub tools: Option<Json>,
    /// Further variables, such as `enable_thinking`. Default none.
    pub extra: Map<String, Json>,
    /// The time that `strftime_now` tells, in UTC. Default the present.
    pub now: Option<SystemTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            tools: None,
            extra: Map::new(),
            now: None,
        }
    }
}

/// Finds a model's template among its metadata: the variant's, or the default one.
///
/// # Errors
/// [`ChatError::Missing`] names the key.
pub fn template_source(
    lookup: impl Fn(&str) -> Option<String>,
    variant: Option<&str>,
) -> Result<String, ChatError> {
    let key = match variant {
        Some(name) => format!("{TEMPLATE_KEY}.{name}"),
        None => TEMPLATE_KEY.to_owned(),
    };
    lookup(&key)
        .filter(|source| !source.trim().is_empty())
        .ok_or(ChatError::Missing { key })
}

/// The prompt without the beginning-of-sequence text that it may start with, for tokenizers that add
/// that token themselves: there must be exactly one.
pub fn strip_bos<'a>(prompt: &'a str, bos: &str) -> &'a str {
    match prompt.strip_prefix(bos) {
        Some(rest) if !bos.is_empty() => rest,
        _ => prompt,
    }
}

/// A compiled template, with the two tokens that templates name.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// The name under which the environment holds the one template.
const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos` are the texts of the tokens that begin and end a
    /// sequence; empty if there are none.
    ///
    /// # Errors
    /// [`ChatError::Syntax`], [`ChatError::SourceTooLong`], [`ChatError::NoThread`].
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self, ChatError> {
        if source.len() > MAX_SOURCE_BYTES {
            return Err(ChatError::SourceTooLong {
                n_bytes: source.len(),
                limit: MAX_SOURCE_BYTES,
            });
        }
        let environment = on_own_stack(|| compile(source))??;
        Ok(Self {
            environment,
            bos: bos.to_owned(),
            eos: eos.to_owned(),
        })
    }

    /// Compiles a built-in template: see [`BUILT_IN`].
    ///
    /// # Errors
    /// [`ChatError::UnknownBuiltIn`].
    pub fn built_in(name: &str, bos: &str, eos: &str) -> Result<Self, ChatError> {
        let found = BUILT_IN.into_iter().find(|(known, _)| *known == name);
        let (_, source) = found.ok_or_else(|| ChatError::UnknownBuiltIn {
            name: name.to_owned(),
        })?;
        Self::new(source, bos, eos)
    }

    /// The prompt text of a conversation.
    ///
    /// It contains control tokens as text, and what users wrote may contain the same text.
    ///
    /// # Errors
    /// [`ChatError::Refused`] when the template itself raises an error, the others when it fails or
    /// exceeds a limit.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let mut context = Map::new();
        let list: Vec<Json> = messages.iter().map(Message::to_json).collect();
        let null_or = |value: &Option<Json>| value.clone().unwrap_or(Json::Null);
        let mut set = |key: &str, value: Json| context.insert(key.to_owned(), value);
        set("messages", Json::Array(list));
        set("tools", null_or(&options.tools));
        set("documents", Json::Null);
        set(
            "add_generation_prompt",
            Json::Bool(options.add_generation_prompt),
        );
        set("bos_token", Json::String(self.bos.clone()));
        set("eos_token", Json::String(self.eos.clone()));
        for (key, value) in &options.extra {
            if key != "messages" {
                set(key, value.clone());
            }
        }
        let n_input: usize = context.values().map(text_bytes).sum();
        let limits = Limits {
            fuel: (BASE_FUEL + FUEL_PER_MESSAGE * messages.len() as u64 + n_input as u64)
                .min(MAX_FUEL),
            output_bytes: BASE_OUTPUT_BYTES.saturating_add(n_input.saturating_mul(4)),
        };
        on_own_stack(|| self.run(&context, limits, options.now))?
    }

    fn run(
        &self,
        context: &Map<String, Json>,
        limits: Limits,
        now: Option<SystemTime>,
    ) -> Result<String, ChatError> {
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(limits.fuel));
        let now = now.unwrap_or_else(SystemTime::now);
        environment.add_function("strftime_now", move |format: &str| {
            strftime::strftime(format, now)
        });
        let template = environment
            .get_template(NAME)
            .map_err(|error| failure(&error, limits))?;
        let mut output = LimitedOutput {
            bytes: Vec::new(),
            limit: limits.output_bytes,
            exceeded: false,
        };
        let result = template.render_captured_to(Value::from(Serde(context)), &mut output);
        if output.exceeded {
            return Err(ChatError::OutputTooLong {
                limit: limits.output_bytes,
            });
        }
        result.map_err(|error| failure(&error, limits))?;
        Ok(match String::from_utf8(output.bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }
}

/// What one rendering may use.
#[derive(Clone, Copy, Debug)]
struct Limits {
    fuel: u64,
    output_bytes: usize,
}

/// Bytes of all strings in a value.
fn text_bytes(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(list) => list.iter().map(text_bytes).sum(),
        Json::Object(map) => map.iter().map(|(k, v)| k.len() + text_bytes(v)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    }
}

/// Runs on a thread with a stack that no template can exhaust.
fn on_own_stack<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, ChatError> {
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_BYTES);
        let thread = builder
            .spawn_scoped(scope, work)
            .map_err(|error| ChatError::NoThread {
                message: error.to_string(),
            })?;
        thread.join().map_err(|_| ChatError::NoThread {
            message: "the template engine panicked".to_owned(),
        })
    })
}

fn compile(source: &str) -> Result<Environment<'static>, ChatError> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.map_err(|error| syntax_error(&error))?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_recursion_limit(RECURSION_LIMIT);
    environment.set_debug(false);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|output, state, value| {
        output.write_str(&python_text(state, value)?)?;
        Ok(())
    });
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |state: &State<'_, '_>, value: &Value| {
        python_text(state, value)
    });
    environment.remove_filter("pprint");
    // Strings and dicts have a length and an index, which is what Python's Jinja looks at; and an
    // undefined value counts as an empty one.
    environment.add_test("sequence", |value: &Value| {
        value.is_undefined() || value.len().is_some()
    });
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_function("raise_exception", raise_exception);
    environment
        .add_template_owned(NAME, tags::without_generation(source).into_owned())
        .map_err(|error| syntax_error(&error))?;
    Ok(environment)
}

/// The text of a value as Python's `str` writes it.
fn python_text(state: &State<'_, '_>, value: &Value) -> Result<String, minijinja::Error> {
    charge_value(state, value, 0)?;
    // The template engine writes floats without an exponent.
    if value.kind() == ValueKind::Number
        && !value.is_integer()
        && let Ok(x) = f64::try_from(value.clone())
    {
        return Ok(json::float(x, false));
    }
    Ok(value.to_string())
}

/// Pays for all that a value contains before it is turned into text. The template engine pays
/// afterwards, and a list that contains another twice, and so on for forty levels, is small until
/// it is written out.
fn charge_value(
    state: &State<'_, '_>,
    value: &Value,
    depth: usize,
) -> Result<(), minijinja::Error> {
    if depth > RECURSION_LIMIT {
        let message = format!("a value nested deeper than {RECURSION_LIMIT} levels");
        return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                state.consume_fuel(1)?;
                charge_value(state, &item, depth + 1)?;
            }
            Ok(())
        }
        ValueKind::Map => {
            for key in value.try_iter()? {
                state.consume_fuel(1)?;
                charge_value(state, &key, depth + 1)?;
                charge_value(state, &value.get_item(&key)?, depth + 1)?;
            }
            Ok(())
        }
        _ => match value.as_str() {
            Some(text) => charge(state, text.len()),
            None => Ok(()),
        },
    }
}

/// What a template says when it refuses. It rides along as the source of the engine's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(state: &State<'_, '_>, message: &Value) -> Result<Value, minijinja::Error> {
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, "raise_exception");
    let message = python_text(state, message)?;
    Err(error.with_source(Raised(shorten(&message))))
}

fn shorten(message: &str) -> String {
    message.chars().take(MAX_MESSAGE_CHARS).collect()
}

fn syntax_error(error: &minijinja::Error) -> ChatError {
    ChatError::Syntax {
        line: error.line().unwrap_or(0),
        message: shorten(error.detail().unwrap_or("syntax error")),
    }
}

/// Finds the cause at the end of the engine's chain of errors.
fn failure(error: &minijinja::Error, limits: Limits) -> ChatError {
    let mut innermost = error;
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = next {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return ChatError::Refused {
                message: message.clone(),
            };
        }
        if let Some(inner) = cause.downcast_ref::<minijinja::Error>() {
            innermost = inner;
            if inner.kind() == ErrorKind::OutOfFuel {
                return ChatError::TooMuchWork { fuel: limits.fuel };
            }
        }
        next = cause.source();
    }
    let message = match innermost.detail() {
        Some(detail) => format!("{}: {detail}", innermost.kind()),
        None => innermost.kind().to_string(),
    };
    ChatError::Failed {
        line: innermost.line().or(error.line()).unwrap_or(0),
        message: shorten(&message),
    }
}

/// A buffer that refuses to grow beyond a limit.
struct LimitedOutput {
    bytes: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.exceeded = true;
            return Err(io::Error::other("output limit"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Pays for work that the template engine cannot see.
fn charge(state: &State<'_, '_>, n_bytes: usize) -> Result<(), minijinja::Error> {
    state.consume_fuel(n_bytes as u64 / 64)
}
