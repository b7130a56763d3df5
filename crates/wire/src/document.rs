//! `docs/reference/protocol.md` says what the code does: every number, name, offset and size in its
//! tables.
//!
//! Not compared: the meanings beside them, and the types inside of an enum's variants.

use crate::calls::{FILE_CALLS, Form, Opened, Place, VOLUME_CALLS};
use crate::handshake::{
    Aim, Answer, BYTES_MAX, Begun, Claim, Greeting, Hello, Key, MappedFile, Node, NodeUse, Opening,
    Request, Resumed, VERSION,
};
use crate::look::{QUESTION_BYTES_MAX, Question, REPLY_BYTES_MAX, Reply};
use crate::memory::{
    AREA_BYTES, AREAS_OFFSET, ARENA_BYTES, ARENA_OFFSET, CROWD_OFFSET, DATA_BYTES_MAX,
    DOORBELL_OFFSET, ENDING_OFFSET, Ending, LAYOUT, MEMORY_BYTES, NOTES_OFFSET, REPLIES_OFFSET,
    SLOTS_OFFSET,
};
use crate::message::{Message, WORDS, WriteFlags};
use crate::slot::{DONE, Doorbell, Notes, REPORTED, Replies, SLEEPING, SLOTS, Slot, WAITED};
use crate::value::{Value, WORDS_BYTES_MAX};
use adit_base::clock::Timestamp;
use adit_base::{Errno, Error};
use adit_fs::{
    BlobId, CheckReport, Credentials, DirEntry, FileKind, FlockOperation, Follow, ListedEntry,
    LockMode, LockOwner, OpenDescriptor, RangeLock, SetTime, Stat, StatFs,
};
use adit_store::{VolumeInfo, XattrMode};
use std::collections::BTreeMap;

/// The first cells of a table's rows.
type Rows = Vec<Vec<String>>;

fn row(cells: &[&dyn std::fmt::Display]) -> Vec<String> {
    cells.iter().map(|cell| cell.to_string()).collect()
}

/// A type as the document calls it: no paths, no lifetimes.
fn named(of: &str) -> String {
    let mut name = String::new();
    for part in of.split_inclusive(|letter: char| !letter.is_alphanumeric() && letter != '_') {
        // `a::b::C` is C.
        match part {
            ":" => {}
            part if part.ends_with(':') => {}
            part => name.push_str(part),
        }
    }
    let name = name.replace("<'a>", "").replace("'a ", "");
    let name = name.replace("Vec<u8>", "bytes").replace("&[u8]", "bytes");
    let name = name.replace("Box<[u8]>", "bytes").replace("String", "text");
    let name = name.replace("BlobKind", "FileKind"); // its name in `adit_fs`
    match (name.strip_prefix("Vec<"), name.strip_prefix("Option<")) {
        (Some(item), _) => format!("list of {}", item.strip_suffix('>').expect("closed")),
        (_, Some(value)) => format!("optional {}", value.strip_suffix('>').expect("closed")),
        _ => name,
    }
}

fn fields<'a>(fields: impl IntoIterator<Item = &'a (&'a str, &'a str)>) -> String {
    let fields = fields.into_iter();
    let shown: Vec<String> = fields
        .map(|(name, of)| format!("`{name}` {}", named(of)))
        .collect();
    shown.join(", ")
}

fn calls(forms: &[Form]) -> Rows {
    let shown = |form: &Form| {
        row(&[
            &form.number,
            &format!("`{}`", form.name),
            &fields(form.arguments),
            &match form.reply {
                "()" => String::new(),
                reply => named(reply),
            },
        ])
    };
    forms.iter().map(shown).collect()
}

/// The operations whose words are a message: the number, the name, the fields that may be other
/// than 0.
fn operations() -> Rows {
    let fields = [
        (0, 1 << 8, "`flags`"),
        (0, 1 << 16, "`number`"),
        (0, 1 << 32, "`len`"),
        (1, 1, "`file`"),
        (2, 1, "`offset`"),
        (3, 1, "`at`"),
    ];
    let all = (0..=u8::MAX).filter_map(|operation| {
        let mut words = [0; WORDS];
        words[0] = u64::from(operation);
        let shown = format!("{:?}", Message::from_words(words)?);
        let name = shown.split([' ', '{']).next().unwrap_or(&shown);
        let used = fields.iter().filter(|(word, bit, _)| {
            let mut words = words;
            words[*word] |= bit;
            Message::from_words(words).is_some()
        });
        let used: Vec<&str> = used.map(|(_, _, name)| *name).collect();
        Some(row(&[&operation, &format!("`{name}`"), &used.join(", ")]))
    });
    all.collect()
}

/// Where the words of a message have a field: word, first bit, bits.
fn place(name: &str, all_ones: Message, zero: Message) -> Vec<String> {
    let (ones, zeroes) = (all_ones.to_words(), zero.to_words());
    let differs: Vec<usize> = (0..WORDS).filter(|&at| ones[at] != zeroes[at]).collect();
    let [word] = differs[..] else {
        panic!("{name} lies in one word, not in {differs:?}");
    };
    let mask = ones[word] ^ zeroes[word];
    let (first, bits) = (mask.trailing_zeros(), mask.count_ones());
    assert_eq!(mask >> first, u64::MAX >> (64 - bits), "{name} is one run");
    row(&[&word, &first, &bits, &format!("`{name}`")])
}

fn message_words() -> Rows {
    let call = |number, file, len| Message::FileCall { number, file, len };
    let read = |offset| Message::Read {
        file: 0,
        len: 0,
        offset,
        hint: false,
    };
    let read_arena = |at| Message::ReadArena {
        file: 0,
        len: 0,
        offset: 0,
        at,
    };
    let write = |flags| Message::Write {
        file: 0,
        len: 0,
        offset: 0,
        flags,
    };
    let flags = place("", write(WriteFlags::all()), write(WriteFlags::empty()));
    assert_eq!(flags[..2], ["0", "8"], "flags lie behind the operation");
    vec![
        row(&[&0, &0, &8, &"`operation`"]),
        row(&[&0, &8, &8, &"`flags`"]),
        place("number", call(u16::MAX, 0, 0), call(0, 0, 0)),
        place("len", call(0, 0, u32::MAX), call(0, 0, 0)),
        place("file", call(0, u64::MAX, 0), call(0, 0, 0)),
        place("offset", read(u64::MAX), read(0)),
        place("at", read_arena(u64::MAX), read_arena(0)),
    ]
}

fn structs() -> Rows {
    macro_rules! all {
        ($($name:ident)*) => {
            vec![$(row(&[&concat!("`", stringify!($name), "`"), &fields(&$name::shape())])),*]
        };
    }
    all!(
        Hello Request Key Claim MappedFile Node Opening Resumed Question Begun Opened BlobId Timestamp Stat StatFs VolumeInfo DirEntry
        ListedEntry OpenDescriptor CheckReport
    )
}

fn enums() -> Rows {
    let mut rows = Rows::new();
    macro_rules! all {
        ($($name:ident)*) => { $(
            for (number, variant) in $name::shape() {
                let variant = variant.replace(['{', '}', '(', ')', ','], " ");
                let mut words = variant.split_whitespace();
                let name = words.next().expect("a name");
                let values: Vec<&str> = words.collect();
                rows.push(row(&[
                    &concat!("`", stringify!($name), "`"), &number, &format!("`{name}`"), &values.join(", "),
                ]));
            }
        )* };
    }
    all!(Greeting Answer Aim NodeUse Reply Follow LockMode LockOwner FlockOperation SetTime XattrMode);
    for (number, kind) in (0..=u8::MAX).filter_map(|of| Some((of, FileKind::from_u8(of)?))) {
        rows.push(row(&[&"`FileKind`", &number, &format!("`{kind:?}`"), &""]));
    }
    rows
}

fn examples() -> Rows {
    fn hexadecimal<'a>(value: &impl Value<'a>) -> String {
        let bytes = value.encode();
        let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("`{}`", bytes.join(" "))
    }
    let id = BlobId {
        slot: 0x0102,
        generation: 3,
    };
    let inside = Place {
        start: Some(id),
        path: Some(b"a/b"),
        links_below: b"/m",
    };
    let owner = LockOwner::Posix { id: 5, pid: 6 };
    let lock = RangeLock::new(owner, LockMode::Exclusive, 7, 8);
    vec![
        row(&[&"`/a` from the root", &hexadecimal(&Place::root(b"/a"))]),
        row(&[&"`a/b` in an open directory", &hexadecimal(&inside)]),
        row(&[&"an exclusive lock", &hexadecimal(&lock)]),
        row(&[
            &"user 1, group 2, groups 2 and 4",
            &hexadecimal(&Credentials::user(1, 2, &[2, 4])),
        ]),
        row(&[
            &"`ENOENT` with words",
            &hexadecimal(&Error::with(Errno::NOENT, "stat /a")),
        ]),
    ]
}

/// What the tables below each heading say, from the code.
fn from_code() -> BTreeMap<&'static str, Rows> {
    let layout = |fields: &[(usize, usize, &str)]| -> Rows {
        let fields = fields.iter();
        fields
            .map(|(offset, bytes, name)| row(&[offset, bytes, &format!("`{name}`")]))
            .collect()
    };
    let (slots_bytes, areas_bytes) = (SLOTS * size_of::<Slot>(), SLOTS * AREA_BYTES);
    assert_eq!(AREAS_OFFSET + areas_bytes, ARENA_OFFSET);
    assert_eq!(ARENA_OFFSET + ARENA_BYTES, MEMORY_BYTES);
    BTreeMap::from([
        (
            "Constants",
            vec![
                row(&[&VERSION, &"`VERSION`"]),
                row(&[&LAYOUT, &"`LAYOUT`"]),
                row(&[&BYTES_MAX, &"`BYTES_MAX`"]),
                row(&[&SLOTS, &"`SLOTS`"]),
                row(&[&DATA_BYTES_MAX, &"`DATA_BYTES_MAX`"]),
                row(&[&AREA_BYTES, &"`AREA_BYTES`"]),
                row(&[&ARENA_BYTES, &"`ARENA_BYTES`"]),
                row(&[&MEMORY_BYTES, &"`MEMORY_BYTES`"]),
                row(&[&WORDS_BYTES_MAX, &"`WORDS_BYTES_MAX`"]),
                row(&[&QUESTION_BYTES_MAX, &"`QUESTION_BYTES_MAX`"]),
                row(&[&REPLY_BYTES_MAX, &"`REPLY_BYTES_MAX`"]),
            ],
        ),
        (
            "The session's memory",
            layout(&[
                (0, size_of::<[u64; 3]>(), "header"),
                (DOORBELL_OFFSET, size_of::<Doorbell>(), "doorbell"),
                (ENDING_OFFSET, size_of::<u32>(), "ending"),
                (CROWD_OFFSET, size_of::<u32>(), "crowd"),
                (REPLIES_OFFSET, size_of::<Replies>(), "replies"),
                (SLOTS_OFFSET, slots_bytes, "slots"),
                (NOTES_OFFSET, SLOTS * size_of::<Notes>(), "notes"),
                (AREAS_OFFSET, areas_bytes, "areas"),
                (ARENA_OFFSET, ARENA_BYTES, "arena"),
            ]),
        ),
        ("Doorbell", layout(&Doorbell::FIELDS)),
        ("Replies", layout(&Replies::FIELDS)),
        ("Slot", layout(&Slot::FIELDS)),
        ("Notes of a slot", layout(&Notes::FIELDS)),
        (
            "States of a slot",
            vec![
                row(&[&WAITED, &"`WAITED`"]),
                row(&[&SLEEPING, &"`SLEEPING`"]),
                row(&[&DONE, &"`DONE`"]),
                row(&[&REPORTED, &"`REPORTED`"]),
            ],
        ),
        (
            "Endings",
            [Ending::Unsaid, Ending::HandedOver, Ending::ForGood]
                .iter()
                .map(|ending| row(&[&(*ending as u32), &format!("`{ending:?}`")]))
                .collect(),
        ),
        ("Words of a message", message_words()),
        ("Operations", operations()),
        (
            "Flags of a write",
            WriteFlags::all()
                .iter_names()
                .map(|(name, flag)| row(&[&flag.bits(), &format!("`{name}`")]))
                .collect(),
        ),
        ("Calls about the volume", calls(VOLUME_CALLS)),
        ("Calls about an open file", calls(FILE_CALLS)),
        ("Structs", structs()),
        ("Enums", enums()),
        ("Examples", examples()),
    ])
}

/// The same from the document: of each table as many cells of a row as the code has.
fn from_document(code: &BTreeMap<&'static str, Rows>) -> BTreeMap<&'static str, Rows> {
    let mut all: BTreeMap<&'static str, Rows> = BTreeMap::new();
    let mut heading = "";
    for line in include_str!("../../../docs/reference/protocol.md").lines() {
        if let Some(title) = line.strip_prefix('#') {
            heading = title.trim_start_matches('#').trim();
            continue;
        }
        let Some(cells) = line
            .strip_prefix('|')
            .and_then(|rest| rest.strip_suffix('|'))
        else {
            continue;
        };
        let cells: Vec<&str> = cells.split('|').map(str::trim).collect();
        let Some(rows) = code.get(heading) else {
            let number = cells[0].parse::<u64>();
            assert!(number.is_err(), "no code stands behind {heading}: {line}");
            continue;
        };
        let is_title = cells.iter().all(|cell| !cell.contains('`'));
        if !is_title && !line.starts_with("|-") {
            let cells = cells[..rows[0].len()].iter();
            let row = cells.map(|cell| (*cell).to_owned()).collect();
            all.entry(heading).or_default().push(row);
        }
    }
    all
}

#[test]
fn the_document_says_what_the_code_has() {
    let code = from_code();
    let document = from_document(&code);
    for (heading, rows) in &code {
        let said = document.get(heading).map_or(&[][..], Vec::as_slice);
        for (at, row) in rows.iter().enumerate() {
            let said = said.get(at).map(|row| row.join(" | "));
            assert_eq!(Some(row.join(" | ")), said, "{heading}");
        }
        assert_eq!(said.len(), rows.len(), "{heading}");
    }
}
