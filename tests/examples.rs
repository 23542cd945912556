//! The files that ship as examples are what they claim to be.

use std::path::Path;

use greengnn::config::{Resample, TrainConfig};

#[test]
fn the_settings_of_the_paper_can_be_read_and_used() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/paper.toml");
    let config = TrainConfig::from_file(&path).unwrap();
    config.check().unwrap();
    // Section VI.A of the paper.
    assert_eq!(config.fanouts, [25, 10]);
    assert_eq!((config.hidden, config.batch_size, config.epochs), (16, 2000, 30));
    assert_eq!((config.lr, config.dropout), (0.003, 0.5));
    assert_eq!((config.policy.as_str(), config.window.steps()), ("window", 16));
    assert_eq!(config.resample, Resample::Never);
}
