//! find: what is below directories of a volume. Its words mean what they do for find(1); all of its
//! tests must be true. Links are not followed.

use super::read::Unread;
use crate::arguments::{Find, VolumeArguments};
use crate::output;
use crate::output::Outcome;
use adit::{Errno, Error, FileKind, Inspector, Metadata};
use std::ffi::{CString, OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub(crate) fn find(arguments: &Find, options: &VolumeArguments) -> adit::Result<Outcome> {
    let query = Query::parse(&arguments.words)?;
    let volume = options.inspect(&arguments.volume)?;
    let search = Search {
        volume: &volume,
        query: &query,
        unread: Unread::default(),
    };
    let mut out = std::io::BufWriter::new(output::stdout());
    let mut outcome = Outcome::Done;
    for top in &query.tops {
        match volume.symlink_metadata(top) {
            Ok(metadata) => search.below(&mut out, top, metadata)?,
            Err(error) => outcome.failed(&error),
        }
    }
    out.flush()?;
    drop(out);
    if let Outcome::Done = outcome {
        outcome = search.unread.outcome();
    }
    volume.close()?;
    Ok(outcome)
}

/// What is asked for.
#[derive(Debug)]
struct Query {
    tops: Vec<PathBuf>,
    tests: Vec<Test>,
    depth_min: usize,
    depth_max: usize,
    end: u8,
}

#[derive(Debug)]
enum Test {
    /// `-name` and, of letters in either case, `-iname`.
    Name(CString, bool),
    Path(CString),
    Kind(FileKind),
    /// In units of so many bytes, rounded up: more, less, or exactly as many.
    Size(std::cmp::Ordering, u64, u64),
    Empty,
}

impl Query {
    fn parse(words: &[OsString]) -> adit::Result<Query> {
        let is_test = |word: &OsString| word.as_bytes().starts_with(b"-");
        let end = words.iter().position(is_test).unwrap_or(words.len());
        let (tops, tests) = words.split_at(end);
        let mut query = Query {
            tops: tops.iter().map(PathBuf::from).collect(),
            tests: Vec::new(),
            depth_min: 0,
            depth_max: usize::MAX,
            end: b'\n',
        };
        if tops.is_empty() {
            query.tops.push("/".into());
        }
        let mut words = tests.iter();
        while let Some(test) = words.next() {
            let refused = |why: &str| {
                let what = format!("find {}: {why}", test.display());
                Error::with(Errno::INVAL, what)
            };
            let mut value = || {
                let value = words.next().ok_or_else(|| refused("a value is missing"))?;
                CString::new(value.as_bytes()).map_err(|_| refused("it has a zero byte"))
            };
            let number = |value: CString| {
                let number = value.to_str().ok().and_then(|value| value.parse().ok());
                number.ok_or_else(|| refused("its value is no number"))
            };
            match test.as_bytes() {
                b"-name" => query.tests.push(Test::Name(value()?, false)),
                b"-iname" => query.tests.push(Test::Name(value()?, true)),
                b"-path" => query.tests.push(Test::Path(value()?)),
                b"-type" => {
                    let kind = kind(value()?.to_bytes());
                    let kind = kind.ok_or_else(|| refused("one of b, c, d, f, l, p, s"))?;
                    query.tests.push(Test::Kind(kind));
                }
                b"-size" => {
                    let size = size(value()?.to_bytes());
                    query
                        .tests
                        .push(size.ok_or_else(|| refused("a size is [+-]N[cwbkMG]"))?);
                }
                b"-empty" => query.tests.push(Test::Empty),
                b"-mindepth" => query.depth_min = number(value()?)?,
                b"-maxdepth" => query.depth_max = number(value()?)?,
                b"-print" => {}
                b"-print0" => query.end = 0,
                _ => return Err(refused("no test that this find has (adit help find)")),
            }
        }
        Ok(query)
    }
}

fn kind(letter: &[u8]) -> Option<FileKind> {
    Some(match letter {
        b"b" => FileKind::BlockDevice,
        b"c" => FileKind::CharDevice,
        b"d" => FileKind::Directory,
        b"f" => FileKind::File,
        b"l" => FileKind::Symlink,
        b"p" => FileKind::Fifo,
        b"s" => FileKind::Socket,
        _ => return None,
    })
}

fn size(text: &[u8]) -> Option<Test> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let (ordering, text) = match text.split_first()? {
        (b'+', rest) => (Greater, rest),
        (b'-', rest) => (Less, rest),
        _ => (Equal, text),
    };
    let (unit, digits) = match text.split_last()? {
        (b'c', rest) => (1, rest),
        (b'w', rest) => (2, rest),
        (b'b', rest) => (512, rest),
        (b'k', rest) => (1 << 10, rest),
        (b'M', rest) => (1 << 20, rest),
        (b'G', rest) => (1 << 30, rest),
        _ => (512, text),
    };
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(Test::Size(ordering, number, unit))
}

struct Search<'a> {
    volume: &'a Inspector,
    query: &'a Query,
    unread: Unread,
}

impl Search<'_> {
    /// Prints what is found, each directory before what is in it.
    fn below(&self, out: &mut impl Write, top: &Path, metadata: Metadata) -> adit::Result<()> {
        let mut pending = vec![(top.to_owned(), 0, metadata)];
        while let Some((path, depth, metadata)) = pending.pop() {
            if depth >= self.query.depth_min && self.is_wanted(&path, &metadata)? {
                out.write_all(path.as_os_str().as_bytes())?;
                out.write_all(&[self.query.end])?;
            }
            if !metadata.is_dir() || depth >= self.query.depth_max {
                continue;
            }
            let mut entries = Vec::new();
            for entry in self.volume.read_dir(&path, true) {
                match entry {
                    Ok(entry) => {
                        let path = path.join(OsString::from_vec(entry.name.into_vec()));
                        let metadata = self.unread.metadata(self.volume, &path, entry.metadata)?;
                        entries.extend(metadata.map(|metadata| (path, depth + 1, metadata)));
                    }
                    Err(error) if output::vanished(self.volume, &error) => break,
                    Err(error) => self.unread.take(error)?,
                }
            }
            // The last one is taken first.
            entries.sort_unstable_by(|(a, ..), (b, ..)| b.cmp(a));
            pending.append(&mut entries);
        }
        Ok(())
    }

    fn is_wanted(&self, path: &Path, metadata: &Metadata) -> adit::Result<bool> {
        for test in &self.query.tests {
            let is_true = match test {
                Test::Name(glob, any_case) => {
                    let name = path.file_name().unwrap_or(OsStr::new("/"));
                    matches(glob, name, *any_case)
                }
                Test::Path(glob) => matches(glob, path.as_os_str(), false),
                Test::Kind(kind) => metadata.kind() == *kind,
                Test::Size(ordering, number, unit) => {
                    metadata.len().div_ceil(*unit).cmp(number) == *ordering
                }
                Test::Empty if metadata.is_dir() => {
                    self.volume.read_dir(path, false).next().is_none()
                }
                Test::Empty => metadata.is_file() && metadata.len() == 0,
            };
            if !is_true {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// As find(1) asks fnmatch(3): a `*` also stands for a slash, and for a dot at the beginning.
fn matches(glob: &CString, text: &OsStr, any_case: bool) -> bool {
    /// `FNM_CASEFOLD` of glibc.
    const ANY_CASE: libc::c_int = 1 << 4;
    let Ok(text) = CString::new(text.as_bytes()) else {
        return false;
    };
    let flags = if any_case { ANY_CASE } else { 0 };
    // SAFETY: both end with a zero byte.
    unsafe { libc::fnmatch(glob.as_ptr(), text.as_ptr(), flags) == 0 }
}
