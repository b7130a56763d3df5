//! The first line of a script, as Linux 6 reads it (`fs/binfmt_script.c`).
//!
//! The kernel looks at 256 bytes. Behind `#!` are the interpreter's path and at most one argument,
//! which may have spaces within. A path that may go on behind these bytes is refused: ENOEXEC.

use crate::runtime::answer::Answer;
use adit::Errno;

/// So much of a program is looked at.
pub(super) const BEGIN_BYTES: usize = 256;
pub(super) type Begin = [u8; BEGIN_BYTES];
/// The last byte counts as the end of the text.
const LAST: usize = BEGIN_BYTES - 1;

/// What a script wants to be read by.
pub(super) struct Line {
    pub(super) interpreter: Vec<u8>,
    pub(super) argument: Option<Vec<u8>>,
}

/// Does a script begin so?
pub(super) fn is_script(begin: &Begin) -> bool {
    begin.starts_with(b"#!")
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// The first byte from `at` to `last` that isn't a space or tab.
fn text_from(begin: &Begin, at: usize, last: usize) -> Option<usize> {
    (at..=last).find(|at| !is_space(begin[*at]))
}

/// The first byte from `at` to `last` that ends a word.
fn end_from(begin: &Begin, at: usize, last: usize) -> Option<usize> {
    (at..=last).find(|at| is_space(begin[*at]) || begin[*at] == 0)
}

/// Reads the line of a script.
pub(super) fn read(begin: &Begin) -> Answer<Line> {
    let mut text = begin.iter().take_while(|byte| **byte != 0);
    let newline = text.position(|byte| *byte == b'\n');
    let mut end = match newline {
        Some(end) => end,
        None => {
            let name = text_from(begin, 2, LAST).ok_or(Errno::NOEXEC)?;
            // The path may go on behind what is looked at.
            end_from(begin, name, LAST).ok_or(Errno::NOEXEC)?;
            LAST
        }
    };
    while is_space(begin[end - 1]) {
        end -= 1;
    }
    let name = text_from(begin, 2, end).filter(|name| *name != end);
    let name = name.ok_or(Errno::NOEXEC)?;
    let behind = end_from(begin, name, end);
    let argument = behind
        .filter(|behind| begin[*behind] != 0)
        .and_then(|behind| text_from(begin, behind, end));
    let until = |from: usize, to: usize| {
        let text = &begin[from..to.max(from)];
        let zero = text.iter().position(|byte| *byte == 0);
        text[..zero.unwrap_or(text.len())].to_vec()
    };
    Ok(Line {
        interpreter: until(name, behind.unwrap_or(end).min(end)),
        argument: argument.map(|argument| until(argument, end)),
    })
}
