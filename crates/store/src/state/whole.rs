//! What all partitions of a volume read ([`Whole`]), and what the first one has for all ([`Lead`]).

use super::{Lead, Store, Whole};

impl Store {
    /// What the first partition has for all, which this one is.
    #[inline]
    pub(crate) fn leading(&self) -> &Lead {
        let lead = self.lead.as_ref();
        lead.expect("the first partition commits, and writes superblocks")
    }
}

/// Each partition may have a worker of its own.
const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Whole>();
};
