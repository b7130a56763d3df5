//! `adit-fuzz TARGET --seconds N [--seed S] [FOLDER]` runs random mutations of the inputs in a
//! folder (the target's corpus) through a target; `adit-fuzz TARGET FILE...` runs just these, once
//! each. An input that panics is left in the working directory.

use adit_base::random::Prng;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const HELP: &str = "Usage: adit-fuzz TARGET FILE...
       adit-fuzz TARGET --seconds N [--seed S] [FOLDER]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("adit-fuzz: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<(), String> {
    let names = adit_fuzz::TARGETS.iter().map(|(name, _)| *name);
    let usage = || format!("{HELP}\nTargets: {}", names.collect::<Vec<_>>().join(", "));
    let Some((name, words)) = words.split_first() else {
        return Err(usage());
    };
    let target = adit_fuzz::TARGETS.iter().find(|(known, _)| known == name);
    let Some((name, target)) = target else {
        return Err(format!("there is no target {name}\n{}", usage()));
    };
    let (mut seconds, mut seed, mut paths) = (None, 1, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse::<u64>().ok());
            value.ok_or(format!("{word} needs a number"))
        };
        match word.as_str() {
            "--seconds" => seconds = Some(number()?),
            "--seed" => seed = number()?,
            word if word.starts_with('-') => return Err(usage()),
            path => paths.push(PathBuf::from(path)),
        }
    }
    match seconds {
        None if paths.is_empty() => Err(usage()),
        None => {
            let mut failed = 0;
            for path in paths {
                let input = read(&path)?;
                if std::panic::catch_unwind(|| target(&input)).is_err() {
                    println!("{name} panics at {}", path.display());
                    failed += 1;
                }
            }
            match failed {
                0 => Ok(()),
                _ => Err(format!("{failed} inputs failed")),
            }
        }
        Some(seconds) => {
            let folder = paths.pop().unwrap_or_else(|| {
                Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fuzz/corpus/{name}"))
            });
            fuzz(name, *target, &folder, Duration::from_secs(seconds), seed)
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn fuzz(
    name: &str,
    target: fn(&[u8]),
    folder: &Path,
    duration: Duration,
    seed: u64,
) -> Result<(), String> {
    let said = |error| format!("{}: {error}", folder.display());
    let mut corpus = vec![Vec::new()];
    for entry in std::fs::read_dir(folder).map_err(said)? {
        corpus.push(read(&entry.map_err(said)?.path())?);
    }
    // A panic that somebody catches is one all the same. What led to it is left for who looks.
    let last = PathBuf::from(format!("crash-{name}-{}", std::process::id()));
    let message = std::panic::take_hook();
    let kept = last.clone();
    std::panic::set_hook(Box::new(move |panic| {
        message(panic);
        eprintln!("adit-fuzz: the input is in {}", kept.display());
        std::process::abort();
    }));
    // One file, written over: what ends the process at once, like an overflow of the stack, leaves
    // its input too.
    let said = |error: std::io::Error| format!("{}: {error}", last.display());
    let file = std::fs::File::create(&last).map_err(said)?;
    let mut random = Prng::new(seed);
    let (start, mut runs) = (Instant::now(), 0_u64);
    while start.elapsed() < duration {
        let mut pick = || corpus[random.below(corpus.len() as u64) as usize].clone();
        let (mut input, other) = (pick(), pick());
        adit_fuzz::mutate(&mut input, &other, &mut random);
        let written = file.write_all_at(&input, 0);
        written
            .and_then(|()| file.set_len(input.len() as u64))
            .map_err(said)?;
        target(&input);
        runs += 1;
    }
    println!(
        "{name}: {runs} inputs in {} s, seed {seed}",
        duration.as_secs()
    );
    std::fs::remove_file(&last).map_err(said)
}
