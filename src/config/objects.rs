//! Settings of the object store.

use std::path::Path;

use super::load::{ConfigError, Values};
use super::settings::{Setting, plain, secret};
use crate::domain::Secret;
use crate::objects::{Bucket, Options};

/// Their rows, in the order of the reference page.
pub(super) const SETTINGS: &[Setting] = &[
    plain(
        "objects.url",
        &["PATHBOX_OBJECTS_URL"],
        "",
        "s3://bucket or s3://bucket/prefix",
        "Where complete outputs, images and files are kept; the data directory when not set. Several replicas need a bucket.",
    ),
    plain(
        "objects.endpoint",
        &["PATHBOX_OBJECTS_ENDPOINT"],
        "",
        "an http or https URL",
        "Where the bucket is served when that is not Amazon; the bucket's name follows as a path.",
    ),
    plain("objects.region", &["PATHBOX_OBJECTS_REGION"], "us-east-1", "a region", "The bucket's region."),
    plain(
        "objects.access_key_id",
        &["PATHBOX_OBJECTS_ACCESS_KEY_ID"],
        "",
        "an access key id",
        "The access key for the bucket; the machine's own role when not set.",
    ),
    secret(
        "objects.secret_access_key",
        &["PATHBOX_OBJECTS_SECRET_ACCESS_KEY"],
        "the access key's secret",
        "The secret of the access key.",
    ),
];

impl Values {
    /// Where whole outputs, pictures and files are kept.
    pub(super) fn objects(&self, data_dir: &Path) -> Result<Options, ConfigError> {
        const URL: &str = "objects.url";
        let Some(url) = self.text(URL) else { return Ok(Options::Directory(data_dir.join("outputs"))) };
        let Some(place) = url.strip_prefix("s3://") else {
            return Err(self.invalid(URL, "it does not begin with s3://"));
        };
        let (name, prefix) = place.split_once('/').unwrap_or((place, ""));
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b)) {
            return Err(self.invalid(URL, "it names no bucket"));
        }
        let id = self.text("objects.access_key_id");
        let secret = self.text("objects.secret_access_key").map(Secret::new);
        let credentials = match (id, secret) {
            (Some(id), Some(secret)) => Some((id, secret)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(self.invalid("objects.access_key_id", "`objects.secret_access_key` is missing"));
            }
            (None, Some(_)) => {
                return Err(self.invalid("objects.secret_access_key", "`objects.access_key_id` is missing"));
            }
        };
        Ok(Options::Bucket(Bucket {
            name: name.to_owned(),
            prefix: prefix.trim_matches('/').to_owned(),
            region: self.get("objects.region").to_owned(),
            endpoint: self.url("objects.endpoint")?,
            credentials,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Sources;

    fn load(env: &[(&str, &str)]) -> Result<Options, ConfigError> {
        let environment = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let environment: BTreeMap<_, _> = environment.chain([("HOME".to_owned(), "/h".to_owned())]).collect();
        let sources = Sources { environment, ..Sources::default() };
        Values::read(&sources)?.config(&sources.environment).map(|config| config.objects)
    }

    #[test]
    fn objects_lie_in_the_data_directory_unless_a_bucket_is_named() {
        let Options::Directory(dir) = load(&[]).unwrap() else { panic!("a bucket") };
        assert_eq!(dir, Path::new("/h/.local/share/pathbox/outputs"));
        let keys = [("PATHBOX_OBJECTS_ACCESS_KEY_ID", "id"), ("PATHBOX_OBJECTS_SECRET_ACCESS_KEY", "s3cret")];
        let url = ("PATHBOX_OBJECTS_URL", "s3://box/a/b/");
        let options = load(&[keys[0], keys[1], url]).unwrap();
        assert!(!format!("{options:?}").contains("s3cret"));
        let Options::Bucket(bucket) = options else { panic!("a directory") };
        assert_eq!((bucket.name.as_str(), bucket.prefix.as_str()), ("box", "a/b"));
        assert_eq!(bucket.credentials.unwrap().1.expose(), "s3cret");
        for bad in [&[url, keys[0]][..], &[url, keys[1]], &[("PATHBOX_OBJECTS_URL", "/tmp/x")]] {
            assert!(load(bad).unwrap_err().to_string().contains("setting `objects."), "{bad:?}");
        }
    }
}
