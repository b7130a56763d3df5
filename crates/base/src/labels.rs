//! Enums whose values each have a label: one list of them, not three.

/// Declares an enum, `ALL` of its values, and a private `label` of each.
macro_rules! labels {
    ($(#[$attribute:meta])* $name:ident: $label:ty { $($value:ident = $text:expr,)* }) => {
        $(#[$attribute])*
        pub enum $name { $($value,)* }

        impl $name {
            /// All of them.
            pub const ALL: [$name; [$(stringify!($value)),*].len()] = [$($name::$value),*];

            fn label(self) -> $label {
                match self { $($name::$value => $text,)* }
            }
        }
    };
}

pub(crate) use labels;
