//! The kernel as an oracle: its file system and the library run the same operations, and must
//! agree. Needs root and a build directory on ext4 with relatime; without them these tests are
//! skipped.

use super::several::Several;
use super::*;
use adit_base::clock::Timestamp;
use adit_operations::{Answer as Reply, Call, Kernel, Library, Node, Outcome, Target, Tree};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

static ROOT: LazyLock<Credentials> = LazyLock::new(|| Credentials::user(0, 0, &[]));

/// Everything there is, and the open files.
fn look(target: &mut dyn Target, slots: &[usize]) -> Tree {
    let mut tree = target.tree(&ROOT);
    for slot in slots {
        if let Ok(Reply::Node(node)) = target.perform(&ROOT, &Call::Fstat(*slot)) {
            tree.insert(format!("file {slot}"), node);
        }
    }
    tree
}

/// The attributes of a node that must agree: times set by the script as they are, others by whether
/// they changed.
fn essence(path: &str, node: &Node, before: &Tree, tree: &Tree) -> String {
    let same = tree.iter().find(|(_, other)| other.inode == node.inode);
    let first = same.map_or(path, |(path, _)| path);
    let old = before.values().find(|old| old.inode == node.inode);
    let time = |now: (i64, u32), old: Option<(i64, u32)>| match old {
        _ if now.0 < 1_500_000_000 => format!("{}.{:09}", now.0, now.1),
        Some(old) if old == now => "as before".into(),
        Some(_) => "changed".into(),
        None => "new".into(),
    };
    format!(
        "{path} is {first}: {:o}, {} links, owner {:?}, device {:x}, {} bytes, accessed {}, modified {}, changed {}",
        node.mode,
        node.links,
        node.owner,
        node.rdev,
        node.size,
        time(node.accessed, old.map(|old| old.accessed)),
        time(node.modified, old.map(|old| old.modified)),
        time(node.changed, old.map(|old| old.changed)),
    )
}

fn essences(before: &Tree, tree: &Tree) -> Vec<String> {
    (tree.iter())
        .map(|(path, node)| essence(path, node, before, tree))
        .collect()
}

/// Without times.
fn plain(tree: &Tree) -> Vec<String> {
    essences(tree, tree)
}

/// Both sides.
pub struct Pair {
    volume: Volume,
    library: Library,
    kernel: Kernel,
    before: (Tree, Tree),
    /// Where they came to different results.
    differences: Vec<String>,
    /// Differences other than those of times.
    without_times: Vec<String>,
    steps: usize,
    /// A tick of the clock fell into a step of one side: which of the times that the step sets is
    /// the later one depends on that.
    ticked: bool,
}

/// Scripts are done so often, if the sides differ by times alone.
const ATTEMPTS_MAX: u32 = 20;

/// This thread before all others, as long as it lives: beside busy programs a tick would fall into
/// a step of nearly every script.
struct Urgent;

impl Urgent {
    fn new() -> Urgent {
        Urgent::set(-20);
        Urgent
    }

    fn set(nice: libc::c_int) {
        // SAFETY: plain call, about this thread.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        Urgent::set(0);
    }
}

impl Pair {
    fn both(&mut self, who: &Credentials, step: &Call<'_>) -> [Outcome; 2] {
        let sides: [&mut dyn Target; 2] = [&mut self.library, &mut self.kernel];
        sides.map(|side| {
            let before = Timestamp::now();
            let outcome = side.perform(who, step).map(Reply::plain);
            self.ticked |= Timestamp::now() != before;
            outcome
        })
    }

    fn now(&mut self) -> (Tree, Tree) {
        let slots = self.library.files.slots();
        let library = look(&mut self.library, &slots);
        (library, look(&mut self.kernel, &slots))
    }

    /// Runs a step on both sides and compares the results, and with `look` both trees afterwards.
    fn compare(&mut self, who: &Credentials, step: &Call<'_>, look: bool) -> bool {
        if look {
            wait_for_the_clock();
        }
        self.steps += 1;
        let [ours, theirs] = self.both(who, step);
        let name = format!("step {} of user {}: {step:?}", self.steps, who.uid);
        if ours != theirs {
            let difference = format!("{name}:\n  library {ours:?}\n  kernel  {theirs:?}");
            self.without_times.push(difference.clone());
            self.differences.push(difference);
        }
        let succeeded = ours.is_ok() || theirs.is_ok();
        if !look {
            return succeeded;
        }
        let now = self.now();
        let ours = essences(&self.before.0, &now.0);
        let theirs = essences(&self.before.1, &now.1);
        for line in ours.iter().filter(|line| !theirs.contains(line)) {
            self.differences.push(format!("{name}:\n  library {line}"));
        }
        for line in theirs.iter().filter(|line| !ours.contains(line)) {
            self.differences.push(format!("{name}:\n  kernel  {line}"));
        }
        if plain(&now.0) != plain(&now.1) {
            self.without_times.push(name);
        }
        self.before = now;
        succeeded
    }

    /// The step's answer and all that it changed are those of Linux.
    pub fn step(&mut self, who: &Credentials, step: Call<'_>) {
        self.compare(who, &step, true);
    }

    /// The step's answer is that of Linux. Was it a success?
    pub fn ask(&mut self, who: &Credentials, step: Call<'_>) -> bool {
        self.compare(who, &step, false)
    }

    /// True if the path exists on either side.
    pub fn exists(&mut self, path: &str) -> bool {
        let there = self.both(&ROOT, &Call::Stat(path, Follow::No));
        there.iter().any(Result::is_ok)
    }

    /// Everything there is looks alike, times left out of account.
    pub fn look(&mut self) {
        self.before = self.now();
        let (ours, theirs) = (plain(&self.before.0), plain(&self.before.1));
        for (ours, theirs) in ours.iter().zip(&theirs).filter(|(a, b)| a != b) {
            let difference = format!("in the end:\n  library {ours}\n  kernel  {theirs}");
            self.without_times.push(difference.clone());
            self.differences.push(difference);
        }
        assert_eq!(ours.len(), theirs.len());
    }
}

/// Waits until the clock has ticked, so that later changes get another time.
fn wait_for_the_clock() {
    let before = Timestamp::now();
    while Timestamp::now() == before {
        std::thread::yield_now();
    }
}

/// True if the kernel can be the oracle here: it takes root, and ext4 mounted with relatime, or a
/// mount of Adit.
fn is_possible(directory: &std::path::Path) -> bool {
    const EXT4_MAGIC: i64 = 0xef53;
    /// A mount of Adit, if a directory was named.
    const FUSE_MAGIC: i64 = 0x6573_5546;
    let path = CString::new(directory.as_os_str().as_bytes()).expect("no NUL");
    // SAFETY: structures of zeroes are some, and the path is terminated.
    let known = unsafe {
        let (mut statfs, mut statvfs): (libc::statfs, libc::statvfs) = std::mem::zeroed();
        libc::statfs(path.as_ptr(), &raw mut statfs) == 0
            && libc::statvfs(path.as_ptr(), &raw mut statvfs) == 0
            && (statfs.f_type == EXT4_MAGIC || statfs.f_type == FUSE_MAGIC)
            && statvfs.f_flag & libc::ST_RELATIME != 0
            && libc::geteuid() == 0
    };
    let attribute = Call::Setxattr("/", Follow::Yes, "trusted.adit", b"x", XattrMode::Any);
    let set = |mut kernel: Kernel| kernel.perform(&ROOT, &attribute).is_ok();
    known && Kernel::new(directory).is_ok_and(set)
}

/// Runs a script on both sides; fails with all the differences.
///
/// Copying a range within a file sets its time of access and that of its last change. If the clock
/// ticks between the two, the next read changes the time of access on one side only; and since
/// Linux 6.13 the clock of a kernel's file system also goes on when another file gets a time that
/// is finer than a tick, which is invisible from outside. So times differ only if they do in each
/// of many attempts, of which one had no tick.
#[track_caller]
pub fn same_as_linux(mut script: impl FnMut(&mut Pair)) {
    // Another file system of the kernel, or a mount, may take this one's place.
    let place = std::env::var("ADIT_POSIX_DIRECTORY");
    let place = place.unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").into());
    let directory = tempfile::tempdir_in(place).expect("a directory");
    if !is_possible(directory.path()) {
        return adit_skip::skip(
            "asking the kernel takes root, and the build on ext4 with relatime (or ADIT_POSIX_DIRECTORY)",
        );
    }
    let _urgent = Urgent::new();
    for workers in [1, 3] {
        compare_scripts(directory.path(), workers, &mut script);
    }
}

/// Runs a script on both sides, with so many workers, as often as it takes.
#[track_caller]
fn compare_scripts(directory: &std::path::Path, workers: u32, script: &mut impl FnMut(&mut Pair)) {
    let mut is_proven = false;
    let mut attempt = 1;
    let differences = loop {
        let inside = directory.join(format!("root{workers}.{attempt}"));
        let pair = run_script(&inside, workers, script);
        is_proven |= !pair.ticked;
        if pair.differences.is_empty() || !pair.without_times.is_empty() {
            break pair.differences;
        }
        if attempt == ATTEMPTS_MAX {
            break if is_proven {
                pair.differences
            } else {
                Vec::new()
            };
        }
        attempt += 1;
    };
    assert!(
        differences.is_empty(),
        "{} differences with {workers} workers\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Runs a script on a new volume and in a new directory.
fn run_script(inside: &std::path::Path, workers: u32, script: &mut impl FnMut(&mut Pair)) -> Pair {
    std::fs::create_dir(inside).expect("a directory");
    std::fs::set_permissions(inside, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let several = (workers > 1).then(|| Several::fresh(workers));
    let volume = match &several {
        None => Volume::fresh(),
        Some(several) => Volume {
            engine: several.workers.lead().clone(),
        },
    };
    volume
        .run(|fs| fs.set_access_times(AccessTimes::Relative))
        .expect("it runs");
    let mut pair = Pair {
        library: Library {
            engine: volume.engine.clone(),
            workers: several.as_ref().map(|several| several.workers.clone()),
            files: Default::default(),
        },
        volume,
        kernel: Kernel::new(inside).expect("root may make it one"),
        before: Default::default(),
        differences: Vec::new(),
        without_times: Vec::new(),
        steps: 0,
        ticked: false,
    };
    pair.before = pair.now();
    script(&mut pair);
    match several {
        None => assert_eq!(pair.volume.check(), [""; 0]),
        Some(several) => {
            for slot in pair.library.files.slots() {
                let closed = pair.library.perform(&ROOT, &Call::Close(slot));
                closed.expect("it is open");
            }
            assert_eq!(several.close(), [""; 0]);
        }
    }
    pair
}
