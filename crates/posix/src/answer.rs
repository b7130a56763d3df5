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

/// Did modification and change time change? None where there was, or is, something else.
pub(crate) type Touched = Option<(bool, bool)>;

/// Compares two looks at one name.
pub(crate) fn touched(before: Option<Look>, after: Option<Look>) -> Touched {
    let (before, after) = (before?, after?);
    (before.inode == after.inode).then_some((
        before.modified != after.modified,
        before.changed != after.changed,
    ))
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
        let before: Vec<_> = names.iter().map(|name| self.look(name)).collect();
        let answer = self.call(who, call);
        let after = names.iter().map(|name| self.look(name));
        let touched = before
            .into_iter()
            .zip(after)
            .map(|(before, after)| touched(before, after));
        let touched = touched.collect();
        (answer, touched)
    }
}
