//! Directories against a map in memory, with pages missing at random.

use super::*;
use adit_base::Error;
use adit_base::hash::HashKey;
use adit_store::testing::MemoryPages;
use proptest::prelude::*;
use std::collections::BTreeMap;
use zerocopy::FromZeros;

const OWNER: u64 = 8 * 77 + 3;
const KEY: HashKey = HashKey([3, 4]);

struct Directory {
    pages: MemoryPages,
    slot: Slot,
}

impl Directory {
    fn new(limit: u64) -> Directory {
        let mut slot = Slot::new_zeroed();
        initialize(&mut slot);
        Directory {
            pages: MemoryPages::new(1000, limit),
            slot,
        }
    }

    /// Runs an operation as a transaction on pages and slot.
    fn change<T>(
        &mut self,
        mut operation: impl FnMut(&mut MemoryPages, &mut Slot) -> Result<T, Stop>,
    ) -> Result<T, Error> {
        let before = self.slot;
        let (value, slot) = self.pages.transact(|pages| {
            let mut slot = before;
            let value = operation(pages, &mut slot)?;
            Ok((value, slot))
        })?;
        self.slot = slot;
        Ok(value)
    }

    fn insert(&mut self, name: &Name<'_>, target: Target) -> Result<(), Error> {
        self.change(|pages, slot| insert(pages, slot, OWNER, name, target))
    }

    fn remove(&mut self, name: &Name<'_>) -> Result<Target, Error> {
        self.change(|pages, slot| remove(pages, slot, OWNER, name))
    }

    fn lookup(&mut self, name: &Name<'_>) -> Option<Target> {
        let slot = self.slot;
        self.pages
            .transact(|pages| lookup(pages, &slot, OWNER, name))
            .expect("a sound directory")
    }

    /// All entries with their keys, by leaves.
    fn list(&mut self) -> Vec<(u64, Vec<u8>, Target)> {
        let (slot, mut from, mut all) = (self.slot, 0, Vec::new());
        loop {
            let mut batch = Vec::new();
            let next = self
                .pages
                .transact(|pages| {
                    batch.clear();
                    read_leaf(pages, &slot, OWNER, from, |key, name, target| {
                        batch.push((key, name.to_vec(), target));
                        true
                    })
                })
                .expect("a sound directory");
            all.append(&mut batch);
            match next {
                Some(next) => from = next,
                None => return all,
            }
        }
    }
}

fn target(number: u64) -> Target {
    Target {
        slot: number,
        generation: number as u32 ^ 5,
        kind: 2,
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16),
    Remove(u16),
    Replace(u16),
    List,
}

/// Names of a number: of all lengths, some with the hash of others.
fn name_bytes(number: u16) -> Vec<u8> {
    let len = 1 + usize::from(number) * 7919 % 255;
    let mut name = format!("{number:05}-").into_bytes();
    name.resize(len.max(6), b'x');
    name
}

fn name_of(number: u16, bytes: &[u8]) -> Name<'_> {
    match number % 16 {
        0 => Name::with_hash(0x1234_5678_0000, bytes),
        1 => Name::with_hash(u64::from(number) << 20, bytes),
        2 => Name::with_hash(u64::MAX, bytes),
        _ => Name::new(&KEY, bytes),
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let number = 0..160u16;
    let step = prop_oneof![
        8 => number.clone().prop_map(Step::Insert),
        6 => number.clone().prop_map(Step::Remove),
        2 => number.prop_map(Step::Replace),
        1 => Just(Step::List),
    ];
    prop::collection::vec(step, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_directory_is_a_map_whatever_pages_are_missing(steps in steps(), seed in any::<u64>()) {
        let mut directory = Directory::new(10_000);
        directory.pages.miss_one_in(6, seed);
        let mut model: BTreeMap<u16, Target> = BTreeMap::new();
        let mut cookies: BTreeMap<u16, u64> = BTreeMap::new();
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Insert(number) => {
                    let bytes = name_bytes(number);
                    let name = name_of(number, &bytes);
                    match directory.insert(&name, target(at as u64)) {
                        Ok(()) => prop_assert!(model.insert(number, target(at as u64)).is_none()),
                        Err(error) if error.errno() == Errno::EXIST => prop_assert!(model.contains_key(&number)),
                        Err(error) => {
                            // Too many names of one hash.
                            prop_assert_eq!(error.errno(), Errno::NOSPC);
                            prop_assert!(matches!(number % 16, 0 | 2));
                        }
                    }
                }
                Step::Remove(number) => {
                    let bytes = name_bytes(number);
                    let removed = directory.remove(&name_of(number, &bytes)).map_err(|error| error.errno());
                    prop_assert_eq!(removed, model.remove(&number).ok_or(Errno::NOENT));
                    cookies.remove(&number);
                }
                Step::Replace(number) => {
                    let bytes = name_bytes(number);
                    let (name, with) = (name_of(number, &bytes), target(1 << 30 | at as u64));
                    let replaced = directory.change(|pages, slot| replace(pages, slot, OWNER, &name, with));
                    let expected = model.get_mut(&number).map(|held| std::mem::replace(held, with));
                    prop_assert_eq!(replaced.map_err(|error| error.errno()), expected.ok_or(Errno::NOENT));
                }
                Step::List => {
                    let listed = directory.list();
                    prop_assert!(listed.is_sorted_by(|a, b| a.0 < b.0));
                    prop_assert_eq!(listed.len(), model.len());
                    for (key, name, target) in listed {
                        let number: u16 = std::str::from_utf8(&name[..5]).unwrap().parse().unwrap();
                        prop_assert_eq!(model.get(&number), Some(&target));
                        prop_assert!(key >= KEY_MIN && key <= i64::MAX as u64);
                        // A name keeps its cookie for as long as it lives.
                        prop_assert_eq!(*cookies.entry(number).or_insert(key), key);
                    }
                }
            }
            prop_assert!(directory.pages.touched() <= 12);
            prop_assert_eq!(directory.slot.size, directory.pages.len() as u64 * 4096);
        }
        for number in 0..160 {
            let bytes = name_bytes(number);
            prop_assert_eq!(directory.lookup(&name_of(number, &bytes)), model.get(&number).copied());
        }
        for number in model.into_keys() {
            let bytes = name_bytes(number);
            directory.remove(&name_of(number, &bytes)).expect("it is there");
        }
        prop_assert!(directory.pages.is_empty());
        prop_assert_eq!(directory.slot.allocated_pages, 0);
    }

    #[test]
    fn a_damaged_directory_is_an_error_and_never_a_panic(
        damage in prop::collection::vec((any::<prop::sample::Index>(), 4..4096usize, any::<u8>()), 1..40),
        header_damage in prop::collection::vec((any::<prop::sample::Index>(), 4..40usize, any::<u8>()), 0..4),
    ) {
        let mut directory = Directory::new(10_000);
        for number in 0..200 {
            let bytes = name_bytes(number);
            directory.insert(&Name::new(&KEY, &bytes), target(7)).expect("it fits");
        }
        let numbers: Vec<u64> = {
            let mut numbers: Vec<u64> = directory.pages.numbers().collect();
            numbers.sort_unstable();
            numbers
        };
        for (page, at, value) in damage.into_iter().chain(header_damage) {
            directory.pages.corrupt_page(*page.get(&numbers)).0[at] = value;
        }
        let slot = directory.slot;
        for number in 0..220 {
            let bytes = name_bytes(number);
            let name = Name::new(&KEY, &bytes);
            let _ = directory.pages.transact(|pages| lookup(pages, &slot, OWNER, &name));
            let _ = directory.pages.transact(|pages| {
                let mut slot = slot;
                remove(pages, &mut slot, OWNER, &name)?;
                // The transaction is aborted, so that every name meets the same damage.
                Err::<(), Stop>(Errno::CANCELED.into())
            });
            let _ = directory.pages.transact(|pages| {
                let mut slot = slot;
                insert(pages, &mut slot, OWNER, &name, target(8))?;
                Err::<(), Stop>(Errno::CANCELED.into())
            });
        }
        let mut from = 0;
        while let Ok(Some(next)) = directory.pages.transact(|pages| read_leaf(pages, &slot, OWNER, from, |_, _, _| true)) {
            prop_assert!(next > from);
            from = next;
        }
    }
}

#[test]
fn names_of_equal_hash_live_together_up_to_a_bound() {
    let mut directory = Directory::new(100);
    let names: Vec<Vec<u8>> = (0..16)
        .map(|number| format!("n{number}").into_bytes())
        .collect();
    for (number, bytes) in names.iter().enumerate() {
        directory
            .insert(&Name::with_hash(160, bytes), target(number as u64))
            .expect("16 ranks");
    }
    let error = directory
        .insert(&Name::with_hash(160, b"one more"), target(0))
        .unwrap_err();
    assert_eq!(error.errno(), Errno::NOSPC);
    // The rank of a removed one is used again; the others keep theirs.
    directory
        .remove(&Name::with_hash(160, &names[5]))
        .expect("it is there");
    directory
        .insert(&Name::with_hash(160, b"one more"), target(99))
        .expect("rank 5");
    let keys: Vec<u64> = directory.list().into_iter().map(|(key, ..)| key).collect();
    assert_eq!(keys, (160..176).collect::<Vec<u64>>());
    assert_eq!(
        directory.lookup(&Name::with_hash(160, b"one more")),
        Some(target(99))
    );
}

#[test]
fn adding_a_name_changes_few_granules() {
    let mut directory = Directory::new(100);
    for number in 0..40u16 {
        let bytes = format!("{number:06}.sst").into_bytes();
        directory
            .insert(&Name::new(&KEY, &bytes), target(1))
            .expect("it fits");
    }
    let page = *directory
        .pages
        .numbers()
        .collect::<Vec<_>>()
        .first()
        .expect("a leaf");
    let before = directory.pages.corrupt_page(page).clone();
    directory
        .insert(&Name::new(&KEY, b"000100.sst"), target(1))
        .expect("it fits");
    let after = directory.pages.corrupt_page(page);
    let changed = before
        .0
        .chunks(64)
        .zip(after.0.chunks(64))
        .filter(|(a, b)| a != b)
        .count();
    assert!(changed <= 5, "{changed} granules");
}

#[test]
fn a_full_volume_leaves_the_directory_as_it_was() {
    let mut directory = Directory::new(3);
    let mut inserted = 0u16;
    loop {
        let bytes = name_bytes(inserted);
        match directory.insert(&Name::new(&KEY, &bytes), target(u64::from(inserted))) {
            Ok(()) => inserted += 1,
            Err(error) => {
                assert_eq!(error.errno(), Errno::NOSPC);
                break;
            }
        }
    }
    assert!(inserted > 20);
    assert_eq!(directory.list().len(), usize::from(inserted));
    for number in 0..inserted {
        let bytes = name_bytes(number);
        assert_eq!(
            directory.remove(&Name::new(&KEY, &bytes)).unwrap(),
            target(u64::from(number))
        );
    }
    assert!(directory.pages.is_empty());
}

/// Reads the whole directory, or to the first error.
fn read(directory: &mut Directory) -> Result<usize, Errno> {
    let (slot, mut from, mut count) = (directory.slot, 0, 0);
    loop {
        let mut here = 0;
        let next = directory.pages.transact(|pages| {
            here = 0;
            read_leaf(pages, &slot, OWNER, from, |_, _, _| {
                here += 1;
                true
            })
        });
        count += here;
        assert!(count < 10_000, "it goes on and on");
        match next.map_err(|error| error.errno())? {
            Some(next) => from = next,
            None => return Ok(count),
        }
    }
}

/// Readers trusted a leaf's order and bounds, and a cookie outside of them led anywhere: back to
/// entries read before, or past unread ones.
#[test]
fn a_leaf_with_keys_out_of_order_or_bounds_is_an_error() {
    let mut directory = Directory::new(1000);
    for number in 0..160 {
        let bytes = name_bytes(number);
        directory
            .insert(&Name::new(&KEY, &bytes), target(7))
            .expect("it fits");
    }
    assert_eq!(read(&mut directory), Ok(160));
    let header = adit_store::page_view::header;
    let mut leaves: Vec<u64> = directory.pages.numbers().collect();
    leaves.retain(|page| {
        let page = directory.pages.corrupt_page(*page);
        header(page).kind == PageKind::NameLeaf as u8
    });
    assert!(leaves.len() > 3);
    for page in leaves {
        let whole = directory.pages.corrupt_page(page).clone();
        let count = usize::from(header(&whole).count);
        let place = |index: usize| {
            let at = 32 + 2 * index;
            usize::from(u16::from_le_bytes([whole.0[at], whole.0[at + 1]]))
        };
        let key = |index: usize| {
            let at = place(index);
            u64::from_le_bytes(whole.0[at..at + 8].try_into().expect("8 bytes"))
        };
        // Before its range, behind it, as the one before it, and with no name at all.
        for bad in [0, u64::MAX, key(count - 2)] {
            let at = place(count - 1);
            let bytes = &mut directory.pages.corrupt_page(page).0;
            bytes[at..at + 8].copy_from_slice(&bad.to_le_bytes());
            assert_eq!(read(&mut directory), Err(Errno::UCLEAN), "{bad}");
            *directory.pages.corrupt_page(page) = whole.clone();
        }
        directory.pages.corrupt_page(page).0[place(0) + 21] = 0;
        assert_eq!(read(&mut directory), Err(Errno::UCLEAN));
        *directory.pages.corrupt_page(page) = whole.clone();
    }
    assert_eq!(read(&mut directory), Ok(160));
}
