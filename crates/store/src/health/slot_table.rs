//! A value for each blob of a volume, by the address of its slot.
//!
//! Slots lie together, so values do, too: in blocks of 64. A dense volume costs the value and some
//! bits a blob. A corrupt one costs no more than a block for 8 pages of the volume: users refuse slots
//! beyond its end.

use std::collections::BTreeMap;

const BLOCK_SLOTS: u64 = 64;

struct Block<T> {
    /// Bit 0: the first slot of the block has a value.
    present: u64,
    /// Anything where none is present.
    values: [T; BLOCK_SLOTS as usize],
}

/// Values by slot address.
pub struct SlotTable<T> {
    blocks: BTreeMap<u64, Box<Block<T>>>,
    len: u64,
}

impl<T> Default for SlotTable<T> {
    fn default() -> Self {
        SlotTable {
            blocks: BTreeMap::new(),
            len: 0,
        }
    }
}

fn place(address: u64) -> (u64, usize) {
    (address / BLOCK_SLOTS, (address % BLOCK_SLOTS) as usize)
}

impl<T: Copy> SlotTable<T> {
    /// Gives a slot a value; returns the one that it had.
    pub fn insert(&mut self, address: u64, value: T) -> Option<T> {
        let (block, index) = place(address);
        let block = self.blocks.entry(block).or_insert_with(|| {
            Box::new(Block {
                present: 0,
                values: [value; BLOCK_SLOTS as usize],
            })
        });
        let before = std::mem::replace(&mut block.values[index], value);
        let was_there = block.present >> index & 1 == 1;
        block.present |= 1 << index;
        self.len += u64::from(!was_there);
        was_there.then_some(before)
    }

    /// The value of a slot.
    pub fn get(&self, address: u64) -> Option<&T> {
        let (block, index) = place(address);
        let block = self.blocks.get(&block)?;
        (block.present >> index & 1 == 1).then(|| &block.values[index])
    }

    /// The value of a slot, to change.
    pub fn get_mut(&mut self, address: u64) -> Option<&mut T> {
        let (block, index) = place(address);
        let block = self.blocks.get_mut(&block)?;
        (block.present >> index & 1 == 1).then(|| &mut block.values[index])
    }

    /// True if the slot has a value.
    pub fn contains(&self, address: u64) -> bool {
        self.get(address).is_some()
    }

    /// Takes the value of a slot away.
    pub fn remove(&mut self, address: u64) -> Option<T> {
        let (block, index) = place(address);
        let block = self.blocks.get_mut(&block)?;
        let was_there = block.present >> index & 1 == 1;
        block.present &= !(1 << index);
        self.len -= u64::from(was_there);
        was_there.then(|| block.values[index])
    }

    /// The number of values.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values by ascending address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.range(0)
    }

    /// The first value from an address on, and its address.
    pub fn first_from(&self, from: u64) -> Option<(u64, T)> {
        let (address, value) = self.range(from).next()?;
        Some((address, *value))
    }

    /// The values from an address on, ascending.
    pub fn range(&self, from: u64) -> impl Iterator<Item = (u64, &T)> {
        let (first, skipped) = place(from);
        self.blocks.range(first..).flat_map(move |(number, block)| {
            let begin = if *number == first { skipped } else { 0 };
            let there =
                (begin..BLOCK_SLOTS as usize).filter(|index| block.present >> index & 1 == 1);
            there.map(move |index| (number * BLOCK_SLOTS + index as u64, &block.values[index]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adit_base::random::Prng;

    #[test]
    fn a_table_has_what_a_map_has() {
        let mut random = Prng::new(1);
        let (mut table, mut map) = (SlotTable::default(), BTreeMap::new());
        for step in 0..20_000_u32 {
            let address = random.below(1000) * random.below(3) + (random.below(2) << 60);
            match random.below(3) {
                0 => assert_eq!(table.remove(address), map.remove(&address)),
                _ => assert_eq!(table.insert(address, step), map.insert(address, step)),
            }
            assert_eq!(table.get(address), map.get(&address));
            assert_eq!(table.len(), map.len() as u64);
            assert_eq!(table.is_empty(), map.is_empty());
            if let Some(value) = table.get_mut(address) {
                *value += 1;
                *map.get_mut(&address).expect("the same") += 1;
            }
        }
        assert!(
            table
                .iter()
                .eq(map.iter().map(|(address, value)| (*address, value)))
        );
        for from in [0, 63, 64, 500, 1 << 60, u64::MAX] {
            let rest = map.range(from..).map(|(address, value)| (*address, value));
            assert!(table.range(from).eq(rest.clone()), "from {from}");
            let first = rest.map(|(address, value)| (address, *value)).next();
            assert_eq!(table.first_from(from), first, "from {from}");
        }
    }
}
