//! What is written: bytes that say which write they are of, and where in it they belong.
//!
//! ```text
//! unit, 16 bytes:  operation u64 | ordinal u32: which unit of the operation | check u32: of both, and of the run
//! ```
//! A cell is the piece that is judged, 512 bytes or fewer. All its units have to be of one
//! operation, or all zero; else it is torn.

/// Bytes of a unit.
pub(crate) const UNIT_BYTES: usize = 16;

/// Names a write of a run: round, thread, and number in the thread's log. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OpId(u64);

impl OpId {
    /// Rounds count from 1.
    pub(crate) fn new(round: u32, thread: usize, index: usize) -> OpId {
        assert!(round > 0 && thread < 1 << 8 && index < 1 << 24);
        OpId(u64::from(round) << 32 | (thread as u64) << 24 | index as u64)
    }

    pub(crate) fn round(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub(crate) fn thread(self) -> usize {
        (self.0 >> 24) as usize & 0xff
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize & 0xff_ffff
    }
}

/// What a unit, or all units of a cell, say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    Zero,
    /// The cell of that operation, counted from its first.
    Written(OpId, u32),
    /// Nothing that the run ever wrote, or not at this place of a cell.
    Garbage([u8; UNIT_BYTES]),
}

/// The units of a run: its seed goes into them, so that those of another run are garbage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamps {
    pub(crate) seed: u64,
    pub(crate) cell_bytes: usize,
}

impl Stamps {
    /// Fills whole cells, from the operation's cell `first` on.
    pub(crate) fn fill(&self, op: OpId, first: u32, bytes: &mut [u8]) {
        let units = bytes.chunks_exact_mut(UNIT_BYTES);
        for (ordinal, unit) in (first * self.units()..).zip(units) {
            unit.copy_from_slice(&self.unit(op, ordinal));
        }
    }

    /// The different values of a cell's units, into `values`: one, unless it is torn.
    pub(crate) fn values(&self, cell: &[u8], values: &mut Vec<Value>) {
        values.clear();
        for (position, unit) in cell.chunks_exact(UNIT_BYTES).enumerate() {
            let unit: [u8; UNIT_BYTES] = unit.try_into().expect("16 bytes");
            // Mostly what the one before leads to expect.
            let as_expected = match values.last() {
                Some(Value::Zero) => unit == [0; UNIT_BYTES],
                Some(&Value::Written(op, cell)) => {
                    unit == self.unit(op, cell * self.units() + position as u32)
                }
                _ => false,
            };
            if as_expected {
                continue;
            }
            let value = self.value(unit, position as u32);
            if !values.contains(&value) {
                values.push(value);
            } else if let Some(known) = values.iter().position(|known| *known == value) {
                let last = values.len() - 1;
                values.swap(known, last);
            }
        }
    }

    /// Whether memory begins with a unit of this run.
    pub(crate) fn is_stamped(&self, bytes: &[u8]) -> bool {
        let Some(unit) = bytes.first_chunk() else {
            return false;
        };
        let ordinal = u32::from_le_bytes(unit[8..12].try_into().expect("4 bytes"));
        matches!(
            self.value(*unit, ordinal % self.units()),
            Value::Written(..)
        )
    }

    fn value(&self, unit: [u8; UNIT_BYTES], position: u32) -> Value {
        if unit == [0; UNIT_BYTES] {
            return Value::Zero;
        }
        let op = OpId(u64::from_le_bytes(unit[..8].try_into().expect("8 bytes")));
        let ordinal = u32::from_le_bytes(unit[8..12].try_into().expect("4 bytes"));
        let belongs = ordinal % self.units() == position;
        match belongs && op.0 != 0 && unit == self.unit(op, ordinal) {
            true => Value::Written(op, ordinal / self.units()),
            false => Value::Garbage(unit),
        }
    }

    fn units(&self) -> u32 {
        (self.cell_bytes / UNIT_BYTES) as u32
    }

    fn unit(&self, op: OpId, ordinal: u32) -> [u8; UNIT_BYTES] {
        let mut mixed = (self.seed ^ op.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 29 ^ u64::from(ordinal)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mut unit = [0; UNIT_BYTES];
        unit[..8].copy_from_slice(&op.0.to_le_bytes());
        unit[8..12].copy_from_slice(&ordinal.to_le_bytes());
        unit[12..].copy_from_slice(&((mixed >> 32) as u32).to_le_bytes());
        unit
    }
}

#[test]
fn a_cell_says_what_it_is_of_and_whether_it_is_torn() {
    let stamps = Stamps {
        seed: 7,
        cell_bytes: 64,
    };
    let (op, other) = (OpId::new(1, 2, 3), OpId::new(1, 2, 4));
    assert_eq!((op.round(), op.thread(), op.index()), (1, 2, 3));
    let mut values = Vec::new();
    let mut bytes = [0; 128];
    stamps.fill(op, 5, &mut bytes);
    stamps.values(&bytes[64..], &mut values);
    assert_eq!(values, [Value::Written(op, 6)]);
    assert!(stamps.is_stamped(&bytes) && !stamps.is_stamped(&[0; 64]));
    stamps.fill(other, 0, &mut bytes[32..48]);
    stamps.values(&bytes[..64], &mut values);
    // Not where it belongs in a cell.
    assert!(values.contains(&Value::Written(op, 5)) && values.len() == 2);
    assert!(matches!(values[0], Value::Garbage(_)) || matches!(values[1], Value::Garbage(_)));
    stamps.values(&[0; 64], &mut values);
    assert_eq!(values, [Value::Zero]);
    bytes[17] ^= 1;
    stamps.values(&bytes[..64], &mut values);
    assert_eq!(values.len(), 3, "{values:?}");
}
