//! An error and its causes in words.

use std::error::Error;

/// The error, then every cause that the text before it does not say already, in one line. For errors that leave their
/// process as text.
pub fn in_one_line(error: &(dyn Error + 'static)) -> String {
    let mut line = error.to_string();
    for cause in new_causes(error) {
        line = format!("{line}: {cause}");
    }
    line
}

/// The causes of an error, outermost first, without those that the one before says already.
pub fn new_causes(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut said = error.to_string();
    let mut causes = Vec::new();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !said.contains(&text) {
            causes.push(text.clone());
            said = text;
        }
        source = cause.source();
    }
    causes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{words}")]
    struct Layer {
        words: &'static str,
        #[source]
        below: Option<Box<Layer>>,
    }

    fn layer(words: &'static str, below: Option<Layer>) -> Layer {
        Layer {
            words,
            below: below.map(Box::new),
        }
    }

    #[test]
    fn each_cause_is_said_once() {
        let disk = layer("disk full", None);
        let error = layer("no trace", Some(layer("writing failed: disk full", Some(disk))));
        assert_eq!(in_one_line(&error), "no trace: writing failed: disk full");
        assert_eq!(new_causes(&error), ["writing failed: disk full"]);
    }
}
