//! Makes the same calls on a directory of a kernel file system, on a mount and in a volume through
//! the library, and compares what they answer, errno by errno; and what is there in the end. `cargo
//! xtask posix` prepares and runs it.
//!
//! Runs as root. The directories must be empty file systems. Intended differences:
//! docs/reference/posix.md, and [`excused`].

mod generator;
mod touched;

use adit_base::Errno;
use adit_fs::{Credentials, FileKind, Follow, OpenFlags};
use adit_operations::{Answer, Call, Files, Kernel, Node, Outcome, Target};
use clap::Parser;
use generator::{Generator, PEOPLE, SLOTS};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use touched::{Observed, agree, observe};

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

/// A target, and what it is called in reports.
struct Side {
    name: &'static str,
    target: Box<dyn Target>,
}

/// What is at a path: attributes, and what else there is to compare.
type Everything = BTreeMap<String, (Node, Vec<Outcome>)>;

/// A volume through the library.
struct Library {
    volume: adit::Volume,
    files: Files,
}

impl Target for Library {
    fn perform(&mut self, who: &Credentials, operation: &Call<'_>) -> Outcome {
        let done = (self.volume).run(|fs| self.files.perform(fs, who, operation));
        done.map_err(|error| error.errno())
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
    let user = |(uid, gid, groups): (u32, u32, &[u32])| Credentials::user(uid, gid, groups);
    let people = PEOPLE.map(user);
    let mut host = Side::kernel("host", &arguments.host)?;
    let mut others = Vec::new();
    if let Some(mount) = &arguments.mount {
        others.push(Side::kernel("mount", mount)?);
    }
    if let Some(address) = &arguments.volume {
        let volume = adit::Volume::open(address).map_err(|error| error.to_string())?;
        let files = Files::default();
        others.push(Side {
            name: "library",
            target: Box::new(Library { volume, files }),
        });
    }
    if others.is_empty() {
        return Err("nothing to compare with: give --mount or --volume".into());
    }
    let [root, ..] = &people;
    let mut equal = true;
    let mut made = 0;
    let mut errors = 0;
    while made < arguments.calls {
        let seed = arguments.seed + made / arguments.sequence;
        host.level(root);
        others.iter_mut().for_each(|side| side.level(root));
        let arena = bumpalo::Bump::new();
        let mut generator = Generator::new(seed, arguments.mount.is_some(), &arena);
        let count = arguments.sequence.min(arguments.calls - made);
        for index in 0..count {
            let (who, operation) = generator.next();
            let right = observe(&mut *host.target, root, &people[who], &operation);
            errors += u64::from(right.0.is_err());
            if arguments.verbose {
                println!("{seed}.{index} {who} {operation}: {}", said(&right));
            }
            for side in &mut others {
                let found = observe(&mut *side.target, root, &people[who], &operation);
                if !agree(&right, &found) && !excused(&operation, &right, &found) {
                    equal = false;
                    println!("sequence {seed}, call {index}, by person {who}: {operation}");
                    println!("  host:  {}", said(&right));
                    println!("  {}: {}", side.name, said(&found));
                    let calls = index + 1;
                    println!("replay: --seed {seed} --calls {calls} --sequence {calls}");
                }
            }
            if !equal {
                println!("made {} calls", made + index + 1);
                return Ok(false);
            }
        }
        made += count;
        let right = host.everything(root);
        for side in &mut others {
            let found = side.everything(root);
            equal &= same_tree(side.name, seed, &right, &found);
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

impl Side {
    fn kernel(name: &'static str, root: &Path) -> Result<Side, String> {
        let kernel = Kernel::new(root).map_err(|error| format!("{}: {error}", root.display()))?;
        let target = Box::new(kernel);
        Ok(Side { name, target })
    }

    /// Removes everything, and gives the root the attributes that all begin with.
    fn level(&mut self, root: &Credentials) {
        let mut perform = |operation| drop(self.target.perform(root, &operation));
        (0..SLOTS).for_each(|slot| perform(Call::Close(slot)));
        perform(Call::Rmdir("/lost+found"));
        // What is below a directory comes behind it.
        for (path, node) in self.target.tree(root).iter().rev() {
            let _ = match node.is(FileKind::Directory) {
                true => self.target.perform(root, &Call::Rmdir(path)),
                false => self.target.perform(root, &Call::Unlink(path)),
            };
        }
        let mut perform = |operation| drop(self.target.perform(root, &operation));
        perform(Call::Chown("/", Follow::Yes, Some(0), Some(0)));
        perform(Call::Chmod("/", Follow::Yes, 0o777));
        for name in ["user.a", "user.b", "trusted.a", "security.a"] {
            perform(Call::Removexattr("/", Follow::No, name));
        }
    }

    fn everything(&mut self, root: &Credentials) -> Everything {
        let tree = self.target.tree(root);
        let with_content = |(path, node): (String, Node)| {
            let content = self.target.content(root, &path, &node);
            (path, (node.plain(), content))
        };
        tree.into_iter().map(with_content).collect()
    }
}

fn said((outcome, touched): &Observed) -> String {
    let answer = match outcome {
        Err(errno) => errno.to_string(),
        Ok(Answer::Bytes(bytes)) => format!(
            "{} bytes: {:?}",
            bytes.len(),
            String::from_utf8_lossy(&bytes[..bytes.len().min(60)])
        ),
        Ok(answer) => format!("{answer:?}"),
    };
    format!("{answer}; touched (name, directory: modified, changed) {touched:?}")
}

fn same_tree(name: &str, seed: u64, right: &Everything, found: &Everything) -> bool {
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
                    "  contents and extended attributes equal: {}",
                    expected.1 == there.1
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

/// The intended differences, each with its reason; docs/reference/posix.md has them in words.
fn excused(operation: &Call<'_>, right: &Observed, found: &Observed) -> bool {
    match (operation, &right.0, &found.0) {
        // A device on a file system without devices: the library has none anywhere.
        (Call::Open(..), Err(Errno::ACCESS), Err(Errno::NXIO)) => true,
        (Call::Open(_, _, flags, _), Err(Errno::ACCESS), Err(Errno::PERM)) => {
            flags.contains(OpenFlags::NOATIME)
        }
        // Linux protects what others put into a sticky directory from O_CREAT, a link that isn't
        // followed too.
        (Call::Open(..), Err(Errno::ACCESS), Err(Errno::LOOP)) => true,
        // Setting an attribute to the value that it has is no change to ext4.
        (Call::Setxattr(..), Ok(_), Ok(_)) => true,
        // Nothing to change: the kernel doesn't ask the mount.
        (Call::Chown(_, _, None, None), Ok(_), Ok(_)) => true,
        // Of two reasons to fail, the name that is too long is found first.
        (Call::Rename(..) | Call::Link(..), Err(_), Err(Errno::NAMETOOLONG)) => true,
        // Links that lead to themselves: the bound of their targets' bytes comes before that of
        // their number.
        (_, Err(Errno::LOOP), Err(Errno::NAMETOOLONG)) => true,
        _ => false,
    }
}
