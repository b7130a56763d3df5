//! Every input of the corpora, and random changes of them, on stable Rust: what a fuzzer has found
//! stays found.
//!
//! `ADIT_SEED` changes the changes, `ADIT_FUZZ_INPUTS` their number.

use adit_base::random::Prng;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::time::Duration;

/// One input takes milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(240);
/// A page is 4 KiB, a cache here 8 MiB, a volume 64 MiB at most.
const ADDRESS_SPACE_MAX: u64 = 16 << 30;

/// Somebody panicked, whether or not somebody else caught it.
static PANICKED: AtomicBool = AtomicBool::new(false);

/// One target at a time: they all look at the same flag, and memory is bounded for all of them.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    PANICKED.store(false, Ordering::SeqCst);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICKED.store(true, Ordering::SeqCst);
            before(panic);
        }));
    });
    let limit = libc::rlimit {
        rlim_cur: ADDRESS_SPACE_MAX,
        rlim_max: ADDRESS_SPACE_MAX,
    };
    // SAFETY: the pointer is to a value that lives.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    guard
}

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number")),
    )
}

fn corpus(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fuzz/corpus/{name}"));
    let entries = std::fs::read_dir(&folder).expect("there is a corpus");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("read").path()).collect();
    paths.sort();
    let read = |path: PathBuf| (path.clone(), std::fs::read(path).expect("read"));
    paths.into_iter().map(read).collect()
}

/// What is run next, for the message about it.
enum Next {
    File(PathBuf),
    Mutation(u64, Vec<u8>),
    Done,
}

/// The byte and the bit of an input that say whether its volume has checksums of data.
fn checksums_bit(name: &str) -> Option<(usize, u8)> {
    match name {
        "image" => Some((0, 2)),
        "operations" => Some((0, 0x80)),
        "salvage" => Some((1, 0x80)),
        _ => None,
    }
}

fn survives(name: &str, mutations: u64) {
    let _alone = alone();
    let (_, target) = adit_fuzz::TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .expect("it is a target");
    let corpus = corpus(name);
    assert!(!corpus.is_empty(), "{name} has no corpus");
    let seed = number("ADIT_SEED").unwrap_or(1);
    let mutations = number("ADIT_FUZZ_INPUTS").unwrap_or(mutations);
    let bit = checksums_bit(name);
    let (said, heard) = mpsc::channel();
    // The stack of a thread, as a caller may have it.
    let runner = std::thread::spawn(move || {
        for (path, input) in &corpus {
            let _ = said.send(Next::File(path.clone()));
            target(input);
        }
        let mut random = Prng::new(seed);
        for index in 0..mutations {
            let mut input = random.pick(&corpus).1.clone();
            let other = &random.pick(&corpus).1;
            adit_fuzz::mutate(&mut input, other, &mut random);
            // Most of the corpora have none.
            if let Some((at, bit)) = bit.filter(|_| index % 2 == 1)
                && let Some(byte) = input.get_mut(at)
            {
                *byte ^= bit;
            }
            let _ = said.send(Next::Mutation(index, input.clone()));
            target(&input);
        }
        let _ = said.send(Next::Done);
    });
    let mut last = Next::Done;
    loop {
        let next = heard.recv_timeout(HANGS_AFTER);
        let what = |last: &Next| match last {
            Next::File(path) => path.display().to_string(),
            Next::Mutation(index, input) => {
                format!("change {index} with seed {seed}: {}", hexadecimal(input))
            }
            Next::Done => "the corpus".to_owned(),
        };
        // The flag was set before the next message was sent.
        let panicked = PANICKED.load(Ordering::SeqCst);
        match next {
            Ok(Next::Done) if !panicked => break,
            Ok(next) if !panicked => last = next,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("{name} hangs at {}", what(&last)),
            _ => panic!("{name} panicked at {} or the next one", what(&last)),
        }
    }
    runner.join().expect("it said that it is done");
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn blocks_of_any_content_are_refused_or_decoded() {
    survives("blocks", 20_000);
}

#[test]
fn a_volume_with_any_content_is_used_or_refused() {
    survives("image", 400);
}

#[test]
fn a_message_is_refused_or_means_what_it_says() {
    survives("look", 50_000);
}

#[test]
fn a_file_system_is_what_its_model_is() {
    survives("operations", 300);
}

#[test]
fn a_mapping_with_any_content_is_used_or_refused() {
    survives("salvage", 300);
}

#[test]
fn a_hostile_session_harms_nobody() {
    survives("session", 600);
}

#[test]
fn trees_of_any_content_are_refused_or_walked() {
    survives("trees", 20_000);
}

/// A target without a test would be one that nobody runs.
#[test]
fn each_target_has_a_test_a_corpus_and_a_libfuzzer_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let here = include_str!("corpus.rs");
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).expect("read");
    for (name, _) in adit_fuzz::TARGETS {
        assert!(
            here.contains(&format!("survives(\"{name}\"")),
            "{name} has no test"
        );
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} is not in fuzz/"
        );
        let target = root.join(format!("fuzz/fuzz_targets/{name}.rs"));
        let target = std::fs::read_to_string(target).expect("a libFuzzer target");
        assert!(
            target.contains(&format!("adit_fuzz::{name}(data)")),
            "{name}"
        );
        let files = corpus(name);
        assert!(
            (1..=120).contains(&files.len()),
            "{name}: {} files",
            files.len()
        );
        for (path, content) in files {
            assert!(content.len() <= 4096, "{} is large", path.display());
        }
    }
}
