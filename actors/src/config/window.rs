//! How long windows are.

use std::fmt;
use std::str::FromStr;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What stands for [`Window::Auto`].
const AUTO: &str = "auto";

/// The steps of a window, or that a run chooses them from what it measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    Steps(u32),
    /// The ranks choose before every epoch; see [`tuning`](crate::tuning).
    Auto,
}

impl Window {
    /// The steps, where nobody chooses.
    pub fn steps(self) -> u32 {
        match self {
            Self::Steps(steps) => steps,
            Self::Auto => 16,
        }
    }

    pub fn is_auto(self) -> bool {
        self == Self::Auto
    }
}

impl Default for Window {
    fn default() -> Self {
        Self::Steps(16)
    }
}

/// A text that names no window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a window is a number of steps or auto, found {0:?}")]
pub struct BadWindow(String);

impl FromStr for Window {
    type Err = BadWindow;

    fn from_str(text: &str) -> Result<Self, BadWindow> {
        match text.trim() {
            AUTO => Ok(Self::Auto),
            steps => steps.parse().map(Self::Steps).map_err(|_| BadWindow(text.to_owned())),
        }
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => write!(f, "{steps}"),
            Self::Auto => f.write_str(AUTO),
        }
    }
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => serializer.serialize_u32(*steps),
            Self::Auto => serializer.serialize_str(AUTO),
        }
    }
}

impl<'de> Deserialize<'de> for Window {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WindowVisitor)
    }
}

/// Takes a number or a word.
struct WindowVisitor;

impl Visitor<'_> for WindowVisitor {
    type Value = Window;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of steps or \"auto\"")
    }

    fn visit_u64<E: Error>(self, steps: u64) -> Result<Window, E> {
        u32::try_from(steps).map(Window::Steps).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, steps: i64) -> Result<Window, E> {
        u32::try_from(steps).map(Window::Steps).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Window, E> {
        text.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_auto_are_read_and_written_in_every_format() {
        for window in [Window::Steps(16), Window::Auto] {
            assert_eq!(window.to_string().parse(), Ok(window));
            let json = serde_json::to_string(&window).unwrap();
            assert_eq!(serde_json::from_str::<Window>(&json).unwrap(), window);
            let packed = rmp_serde::to_vec_named(&window).unwrap();
            assert_eq!(rmp_serde::from_slice::<Window>(&packed).unwrap(), window);
        }
        assert!("-1".parse::<Window>().is_err() && "many".parse::<Window>().is_err());
        assert!(serde_json::from_str::<Window>("-1").is_err());
        assert!(serde_json::from_str::<Window>("\"8 steps\"").is_err());
    }
}
