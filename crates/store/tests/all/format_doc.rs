//! `docs/reference/volume-format.md` agrees with the code: every field of every structure, by
//! offset and size.

use adit_store::format::*;
use std::collections::BTreeMap;

/// Fields of the structures, from the code.
fn from_code() -> BTreeMap<String, Vec<(usize, usize, String)>> {
    let mut all = BTreeMap::new();
    macro_rules! structure {
        ($name:ident { $($field:ident),* $(,)? }) => {
            let mut fields = Vec::new();
            $(
                let size = {
                    fn size_of_field<T, F>(_: fn(&T) -> &F) -> usize {
                        size_of::<F>()
                    }
                    size_of_field(|value: &$name| &value.$field)
                };
                fields.push((std::mem::offset_of!($name, $field), size, stringify!($field).to_string()));
            )*
            let end = fields.last().map_or(0, |(offset, size, _)| offset + size);
            assert_eq!(end, size_of::<$name>(), "{}: a field is missing here, or there is padding", stringify!($name));
            all.insert(stringify!($name).to_string(), fields);
        };
    }
    structure!(Superblock {
        magic,
        crc,
        algorithm,
        version,
        page_shift,
        volume_id,
        sequence,
        epoch,
        tail,
        volume_pages,
        journal_pages,
        cluster_pages,
        state,
        features_incompatible,
        features_read_only,
        features_compatible,
        created_seconds,
        hash_key,
        label,
        opening,
        unsettled,
        memory_epoch,
        memory_image,
        memory_boot,
        memory_bytes,
        memory_directories,
        reserved
    });
    structure!(JournalHeader {
        magic,
        crc,
        volume_id,
        epoch,
        lsn,
        horizon,
        transaction_lsn,
        transaction_pages,
        payload_bytes,
        algorithm,
        reserved
    });
    structure!(RecordHeader {
        page_and_kind,
        offset,
        len_bytes,
        reserved
    });
    structure!(PageHeader {
        crc,
        algorithm,
        kind,
        level,
        flags,
        owner,
        count,
        used_bytes,
        reserved
    });
    structure!(StatePage {
        header,
        free_pages,
        blobs,
        groups_initialized,
        next_generation,
        groups,
        root,
        root_generation,
        orphans_generation,
        orphans,
        slot_cursor,
        data_cursor,
        volume_pages
    });
    structure!(GroupMap { header, a, b });
    structure!(ChecksumPage { header, sums });
    structure!(Slot {
        crc,
        algorithm,
        kind,
        map_kind,
        map_depth,
        generation,
        links,
        size,
        valid_size,
        mode,
        uid,
        gid,
        flags,
        rdev,
        allocated_pages,
        atime,
        mtime,
        ctime,
        btime,
        atime_ns,
        mtime_ns,
        ctime_ns,
        btime_ns,
        parent,
        xattr_page,
        map_count,
        padding,
        payload,
        reserved
    });
    structure!(RawExtent {
        logical,
        flags,
        pages_and_physical
    });
    structure!(ExtentLeaf { header, extents });
    structure!(InnerEntry { key, child });
    all
}

/// The structures in the tables of the document.
fn from_document() -> BTreeMap<String, Vec<(usize, usize, String)>> {
    let mut all: BTreeMap<String, Vec<(usize, usize, String)>> = BTreeMap::new();
    let mut current = String::new();
    for line in include_str!("../../../../docs/reference/volume-format.md").lines() {
        if let Some(title) = line.strip_prefix("## ") {
            current = title.to_string();
        }
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        if let [_, offset, size, field, ..] = cells[..]
            && let (Ok(offset), Ok(size)) = (offset.parse(), size.parse())
            && field.starts_with('`')
        {
            let field = field.trim_matches('`').to_string();
            all.entry(current.clone())
                .or_default()
                .push((offset, size, field));
        }
    }
    all
}

#[test]
fn the_document_states_the_layout_that_the_code_has() {
    assert_eq!(from_document(), from_code());
}
