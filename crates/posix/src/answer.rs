//! What a call answers, in a form that can be compared.

use std::collections::BTreeMap;

/// Attributes that must be equal. Sizes of directories are not: they are the file system's business.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Attributes {
    /// Type and permissions.
    pub(crate) mode: u32,
    pub(crate) links: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) rdev: u64,
}

/// An answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    Done,
    /// Bytes read, or names of attributes.
    Bytes(Vec<u8>),
    Attributes(Attributes),
    /// Names and types.
    Names(BTreeMap<Vec<u8>, u32>),
}

/// An inode, for those who want to know whether a name still stands for the same one, and two of its times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    pub(crate) inode: u64,
    pub(crate) modified: (i64, u32),
    pub(crate) changed: (i64, u32),
}

/// Did modification and change time change? None where that can't be known: there was, or is, something else, or
/// the time was that of the clock's tick already.
pub(crate) type Touched = [Option<bool>; 2];

/// Compares two looks at one name, the first one before a call in this tick of the clock.
fn touched(before: Option<Look>, after: Option<Look>, tick: (i64, u32)) -> Touched {
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
pub(crate) fn agree(right: &Outcome, found: &Outcome) -> bool {
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

/// What came of a call: the answer or errno, and what became of the names in it and the directories they are in.
pub(crate) type Outcome = (Result<Answer, i32>, Vec<Touched>);

/// What is at a path: attributes, then content, target, or names.
pub(crate) type Tree = BTreeMap<String, (Attributes, Answer, BTreeMap<Vec<u8>, Vec<u8>>)>;

/// The directory that a name is in, as words.
pub(crate) fn above(path: &str) -> String {
    match path.trim_end_matches('/').rsplit_once('/') {
        Some(("", _)) => "/".into(),
        Some((above, _)) => above.into(),
        None => ".".into(),
    }
}

/// Something that calls can be made on.
pub(crate) trait Target {
    /// What it is called in reports.
    fn name(&self) -> &str;
    /// Makes the call.
    fn call(&mut self, who: usize, call: &crate::call::Call) -> Result<Answer, i32>;
    /// Looks at a name, without following a link.
    fn look(&mut self, path: &str) -> Option<Look>;
    /// Everything that there is.
    fn tree(&mut self) -> Tree;

    /// Makes a call and looks at its names before and after.
    fn observe(&mut self, who: usize, call: &crate::call::Call) -> Outcome {
        let names: Vec<String> = (call.paths().into_iter())
            .filter(|path| !path.is_empty())
            .flat_map(|path| [path.to_owned(), above(path)])
            .collect();
        let tick = adit_base::clock::Timestamp::now();
        let tick = (tick.seconds, tick.nanoseconds);
        let before: Vec<_> = names.iter().map(|name| self.look(name)).collect();
        let answer = self.call(who, call);
        let after = names.iter().map(|name| self.look(name));
        let touched = before
            .into_iter()
            .zip(after)
            .map(|(before, after)| touched(before, after, tick));
        let touched = touched.collect();
        (answer, touched)
    }
}
