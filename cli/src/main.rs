//! `gemel`: runs published GGUF language models on any GPU.
#![forbid(unsafe_code)]

/// One line on standard error, for people: notes, speeds, warnings, errors.
macro_rules! note {
    ($($text:tt)*) => { $crate::session::note(&format!($($text)*)) };
}

mod bench;
mod chat;
mod device;
mod devices;
mod inspect;
mod options;
mod perplexity;
mod run;
mod session;
mod synth;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

/// Runs published GGUF language models on any GPU.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer a prompt and stop
    Run(run::RunArgs),
    /// Talk with a model, turn by turn
    Chat(chat::ChatArgs),
    /// List the devices that models can run on
    Devices(devices::DevicesArgs),
    /// Show what is in a GGUF file and what the engine will do with it
    Inspect(inspect::InspectArgs),
    /// Measure prefill and decode speed
    Bench(bench::BenchArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Write a synthetic model as a GGUF file, for other programs to load
    Synth(synth::SynthArgs),
}

fn main() -> ExitCode {
    let args = options::spell_out(std::env::args_os(), &Cli::command());
    let result = match Cli::parse_from(args).command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::chat(&args),
        Command::Devices(args) => devices::devices(&args),
        Command::Inspect(args) => inspect::inspect(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Perplexity(args) => perplexity::perplexity(&args),
        Command::Synth(args) => synth::synth(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            note!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The reader of our output went away (`gemel ... | head`): nothing is wrong.
fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Command, clap::Error> {
        let args = options::spell_out(line.iter().map(Into::into), &Cli::command());
        Cli::try_parse_from(args).map(|cli| cli.command)
    }

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_people_already_type_are_understood() {
        let line = "gemel run -m x.gguf -p hi -n 8 -c 512 -b 64 -ub 32 -t 2 -s 7 --temp 0 --top-k 5 --top-p 0.9 \
                    --min-p 0.1 -ctk q8_0 -ctv f16 --device reference -v";
        let words: Vec<_> = line.split_whitespace().collect();
        let Ok(Command::Run(args)) = parse(&words) else {
            panic!("run was asked for");
        };
        assert_eq!(args.model.ubatch_size, 32, "-ub");
        assert_eq!(args.model.cache_type_k, gemel_core::DType::Q8_0, "-ctk");
        assert_eq!(args.sampling.top_k, Some(5), "--top-k");
    }

    #[test]
    fn values_are_not_taken_for_flags() {
        for prompt in ["-ub", "-ctk", "-n", "--", "-sys"] {
            let line = ["gemel", "run", "-m", "x.gguf", "-p", prompt, "-ub", "7"];
            let Ok(Command::Run(args)) = parse(&line) else {
                panic!("{prompt}: run was asked for");
            };
            assert_eq!(args.prompt.as_deref(), Some(prompt));
            assert_eq!(args.model.ubatch_size, 7, "-ub after -p {prompt}");
        }
        let Ok(Command::Inspect(_)) = parse(&["gemel", "inspect", "--", "-ub"]) else {
            panic!("a file may be called -ub");
        };
    }

    #[test]
    fn minus_one_means_no_limit() {
        let line = "gemel run -m x.gguf -p hi -n -1 -s -1 --repeat-last-n -1 -ngl -1";
        let words: Vec<_> = line.split_whitespace().collect();
        let Ok(Command::Run(args)) = parse(&words) else {
            panic!("run was asked for");
        };
        assert_eq!(options::limit(args.n_predict), None);
        assert_eq!(options::limit(Some(5)), Some(5));
    }
}
