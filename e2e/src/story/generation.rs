//! A master's image of an earlier Mooncake minor, which understands no message of ours.

use super::stage::Stage;
use crate::cache::{Cache, Inputs};
use crate::command::Run;
use crate::{Error, Settings, images};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Version of the wheel in the image.
pub const OTHER_VERSION: &str = "0.3.11.post1";
const REFERENCE: &str = "localhost/mooncake-stock:0.3.11";
const CONTAINERFILE: &str = include_str!("../../images/mooncake-stock/Containerfile");

/// The reference of the image, which all nodes have afterwards.
///
/// # Errors
/// Those of pip and buildah.
pub async fn other_generation(stage: &Stage, settings: &Settings) -> anyhow::Result<&'static str> {
    let settings = settings.clone();
    stage
        .with(move |cluster| {
            let inputs = Inputs::default().and(CONTAINERFILE).and(OTHER_VERSION);
            let entry =
                Cache::new(&settings.cache).entry("image-mooncake-other", inputs, |folder| {
                    make(&settings, folder)
                })?;
            cluster.load_image(&entry.join("image.tar"))
        })
        .await?;
    Ok(REFERENCE)
}

fn make(settings: &Settings, folder: &Path) -> Result<(), Error> {
    let context = folder.join("context");
    fs::create_dir(&context).map_err(Error::file("making", &context))?;
    let file = context.join("Containerfile");
    fs::write(&file, CONTAINERFILE).map_err(Error::file("writing", &file))?;
    Run::new("pip3")
        .args(["-q", "install", "--no-compile", "--no-warn-script-location"])
        .args([
            "--only-binary=:all:",
            "--python-version=3.11",
            "--implementation=cp",
        ])
        .arg("--target")
        .arg(context.join("site"))
        .arg(format!(
            "mooncake-transfer-engine-non-cuda=={OTHER_VERSION}"
        ))
        .deadline(Duration::from_secs(600))
        .done()?;
    images::build(
        settings,
        &context,
        &file,
        REFERENCE,
        &folder.join("image.tar"),
    )?;
    fs::remove_dir_all(&context).map_err(Error::file("removing", &context))
}
