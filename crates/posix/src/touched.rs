//! Whether an operation touched its names: their times, and those of the directories that they are
//! in.

use adit_fs::Credentials;
use adit_operations::{Answer, Call, Node, Outcome, Target};

/// Did modification and change time change? None where that can't be known: there was, or is,
/// something else, or the time was that of the clock's tick already.
pub(crate) type Touched = [Option<bool>; 2];

/// Compares two looks at one name, the first one before a call in this tick of the clock.
fn touched_between(before: Option<Node>, after: Option<Node>, tick: (i64, u32)) -> Touched {
    let (Some(before), Some(after)) = (before, after) else {
        return [None; 2];
    };
    let changed = |before, after| match before != after {
        true => Some(true),
        false if before >= tick => None,
        false => Some(false),
    };
    match before.inode == after.inode {
        true => [
            changed(before.modified, after.modified),
            changed(before.changed, after.changed),
        ],
        false => [None; 2],
    }
}

/// Do two answers say nothing that contradicts each other about what was touched?
pub(crate) fn agree(right: &Observed, found: &Observed) -> bool {
    let agrees = |right: &Option<bool>, found: &Option<bool>| match (right, found) {
        (Some(right), Some(found)) => right == found,
        _ => true,
    };
    right.0 == found.0
        && right.1.len() == found.1.len()
        && (right.1.iter().zip(&found.1)).all(|(right, found)| {
            right
                .iter()
                .zip(found)
                .all(|(right, found)| agrees(right, found))
        })
}

/// What came of an operation, and what became of the names in it and the directories they are in.
pub(crate) type Observed = (Outcome, Vec<Touched>);

/// The directory that a name is in, as words.
fn above(path: &str) -> String {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) => "/".into(),
        Some((above, _)) => above.into(),
        None => ".".into(),
    }
}

/// Performs an operation and looks at its names before and after, as root.
pub(crate) fn observe(
    target: &mut dyn Target,
    root: &Credentials,
    who: &Credentials,
    operation: &Call<'_>,
) -> Observed {
    let names: Vec<String> = (operation.paths().into_iter())
        .filter(|path| !path.is_empty())
        .flat_map(|path| [path.to_owned(), above(path)])
        .collect();
    let tick = adit_base::clock::Timestamp::now();
    let tick = (tick.seconds, tick.nanoseconds);
    let before: Vec<_> = names.iter().map(|name| target.look(root, name)).collect();
    let outcome = target.perform(who, operation).map(Answer::plain);
    let after = names.iter().map(|name| target.look(root, name));
    let touched = before.into_iter().zip(after);
    let touched = touched.map(|(before, after)| touched_between(before, after, tick));
    (outcome, touched.collect())
}
