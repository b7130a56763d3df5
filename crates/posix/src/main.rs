//! Makes the same calls on a directory of a kernel file system, on a mount and in a volume through the library, and
//! compares what they answer, errno by errno; and what is there in the end. `cargo xtask posix` prepares and runs it.
//!
//! Runs as root. The directories must be empty file systems. Intended differences: docs/posix.md, and [`excused`].

mod answer;
mod call;
mod host;
mod library;

use adit_fs::OpenFlags;
use answer::{Answer, Outcome, Target, Tree, agree};
use call::{Call, Calls, DESCRIPTORS};
use clap::Parser;
use host::Host;
use library::Library;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares Adit with a file system of the kernel, call by call.
#[derive(Parser)]
struct Arguments {
    /// Root of an empty file system of the kernel: what is right
    #[arg(long)]
    host: PathBuf,
    /// Root of an empty mounted volume
    #[arg(long)]
    mount: Option<PathBuf>,
    /// An empty volume, to be used through the library
    #[arg(long)]
    volume: Option<String>,
    /// How many calls
    #[arg(long, default_value_t = 100_000)]
    calls: u64,
    /// Calls of one sequence; each begins with an empty root directory
    #[arg(long, default_value_t = 1000)]
    sequence: u64,
    /// Number of the first sequence, which decides what is called
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print every call and what came of it
    #[arg(long)]
    verbose: bool,
}

/// Bytes compared at each end of a file.
const END_BYTES: usize = 1 << 20;

/// Where the pieces of a file begin that are compared.
fn ends(size: u64) -> Vec<u64> {
    match size.checked_sub(END_BYTES as u64) {
        None | Some(0) => vec![0],
        Some(last) => vec![0, last],
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("adit-posix: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<bool, String> {
    let mut host = Host::new("host", arguments.host.clone())?;
    let mut others: Vec<Box<dyn Target>> = Vec::new();
    if let Some(mount) = &arguments.mount {
        others.push(Box::new(Host::new("mount", mount.clone())?));
    }
    if let Some(address) = &arguments.volume {
        let volume = adit::Volume::open(address).map_err(|error| error.to_string())?;
        others.push(Box::new(Library::new(volume)));
    }
    if others.is_empty() {
        return Err("nothing to compare with: give --mount or --volume".into());
    }
    let mut equal = true;
    let mut made = 0;
    let mut errors = 0;
    while made < arguments.calls {
        let seed = arguments.seed + made / arguments.sequence;
        level(&mut host);
        others.iter_mut().for_each(|target| level(&mut **target));
        let mut calls = Calls::new(seed, arguments.mount.is_some());
        let count = arguments.sequence.min(arguments.calls - made);
        for index in 0..count {
            let (who, call) = &calls.next();
            let right = host.observe(*who, call);
            errors += u64::from(right.0.is_err());
            if arguments.verbose {
                println!("{seed}.{index} {who} {call:?}: {}", said(&right));
            }
            for target in &mut others {
                let found = target.observe(*who, call);
                if !agree(&right, &found) && !excused(call, &right, &found) {
                    equal = false;
                    report(target.name(), seed, index, *who, call, &right, &found);
                }
            }
            if !equal {
                println!("made {} calls", made + index + 1);
                return Ok(false);
            }
        }
        made += count;
        let right = host.tree();
        for target in &mut others {
            let found = target.tree();
            equal &= same_tree(target.name(), seed, &right, &found);
        }
        if !equal {
            return Ok(false);
        }
    }
    println!(
        "{made} calls ({errors} of them answered with an error) on {} targets: no difference",
        others.len() + 1
    );
    Ok(true)
}

/// Removes everything, and gives the root the attributes that all begin with.
fn level(target: &mut dyn Target) {
    for at in 0..DESCRIPTORS {
        let _ = target.call(0, &Call::Close(at));
    }
    let _ = target.call(0, &Call::Rmdir("/lost+found".into()));
    // What is below a directory comes behind it.
    for (path, (attributes, ..)) in target.tree().into_iter().rev() {
        let _ = match attributes.mode & libc::S_IFMT {
            libc::S_IFDIR => target.call(0, &Call::Rmdir(path)),
            _ => target.call(0, &Call::Unlink(path)),
        };
    }
    let root = || String::from("/");
    let _ = target.call(0, &Call::Chown(root(), Some(0), Some(0), true));
    let _ = target.call(0, &Call::Chmod(root(), 0o777));
    for name in ["user.a", "user.b", "trusted.a", "security.a"] {
        let _ = target.call(0, &Call::RemoveXattr(root(), name.into()));
    }
}

fn said(outcome: &Outcome) -> String {
    let answer = match &outcome.0 {
        Err(errno) => std::io::Error::from_raw_os_error(*errno).to_string(),
        Ok(Answer::Bytes(bytes)) => format!(
            "{} bytes: {:?}",
            bytes.len(),
            String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
        ),
        Ok(answer) => format!("{answer:?}"),
    };
    format!(
        "{answer}; touched (name, directory: modified, changed) {:?}",
        outcome.1
    )
}

fn report(
    name: &str,
    seed: u64,
    index: u64,
    who: usize,
    call: &Call,
    right: &Outcome,
    found: &Outcome,
) {
    println!("sequence {seed}, call {index}, by person {who}: {call:?}");
    println!("  host:  {}", said(right));
    println!("  {name}: {}", said(found));
    println!(
        "replay: --seed {seed} --calls {} --sequence {}",
        index + 1,
        index + 1
    );
}

fn same_tree(name: &str, seed: u64, right: &Tree, found: &Tree) -> bool {
    let mut same = true;
    for (path, expected) in right {
        match found.get(path) {
            Some(there) if there == expected => (),
            Some(there) => {
                same = false;
                println!(
                    "after sequence {seed}, {path}: attributes {:?} on the host, {:?} on {name}",
                    expected.0, there.0
                );
                println!(
                    "  contents equal: {}, extended attributes equal: {}",
                    expected.1 == there.1,
                    expected.2 == there.2
                );
            }
            None => {
                same = false;
                println!("after sequence {seed}, {path} is missing on {name}");
            }
        }
    }
    for path in found.keys().filter(|path| !right.contains_key(*path)) {
        same = false;
        println!("after sequence {seed}, {path} is on {name} only");
    }
    same
}

/// The intended differences, each with its reason; docs/posix.md has them in words.
fn excused(call: &Call, right: &Outcome, found: &Outcome) -> bool {
    match (call, &right.0, &found.0) {
        // A device on a file system without devices: the library has none anywhere.
        (Call::Open(..), Err(libc::EACCES), Err(libc::ENXIO)) => true,
        (Call::Open(_, _, flags, _), Err(libc::EACCES), Err(libc::EPERM)) => {
            flags.contains(OpenFlags::NOATIME)
        }
        // Linux protects what others put into a sticky directory from O_CREAT, a link that isn't followed too.
        (Call::Open(..), Err(libc::EACCES), Err(libc::ELOOP)) => true,
        // Setting an attribute to the value that it has is no change to ext4.
        (Call::SetXattr(..), Ok(_), Ok(_)) => true,
        // Nothing to change: the kernel doesn't ask the mount.
        (Call::Chown(_, None, None, _), Ok(_), Ok(_)) => true,
        // Of two reasons to fail, the name that is too long is found first.
        (Call::Rename(..) | Call::Link(..), Err(_), Err(libc::ENAMETOOLONG)) => true,
        _ => false,
    }
}
