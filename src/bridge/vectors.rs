//! The second ranking of a search, by the nearness of vectors from an OpenAI-compatible `/embeddings` endpoint. Optional: it is
//! fused with the ranking by words, and whatever goes wrong with it leaves that one alone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::Catalog;
use super::search::Hit;
use crate::domain::lock;
use crate::wire::Secret;

/// Texts of one request.
const BATCH: usize = 128;
/// How long a request for one query may take; a search does not wait longer.
const QUERY: Duration = Duration::from_millis(1_500);
/// How long a request for descriptions may take.
const CATALOG: Duration = Duration::from_secs(60);
/// Characters of a text that are sent.
const MAX_CHARS: usize = 1_000;
/// Vectors that are kept.
const MAX_KEPT: usize = 100_000;

/// Where vectors come from.
#[derive(Debug, Clone)]
pub struct Embeddings {
    /// The base URL, to which `/embeddings` is added.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// Its key, if it wants one.
    pub key: Option<Secret>,
}

type Key = [u8; 32];
type Vector = Arc<[f32]>;

#[derive(Debug)]
pub(super) struct Vectors {
    from: Embeddings,
    client: reqwest::Client,
    known: Mutex<HashMap<Key, Vector>>,
    /// One pass over a catalog at a time.
    filling: tokio::sync::Mutex<()>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    index: usize,
    embedding: Vec<f32>,
}

impl Vectors {
    pub(super) fn new(from: Embeddings) -> Option<Self> {
        // Fails when one is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .redirect(reqwest::redirect::Policy::none())
            .build();
        let client = client
            .inspect_err(|error| tracing::warn!(error = %error, "no vectors for the tool search"))
            .ok()?;
        Some(Self { from, client, known: Mutex::default(), filling: tokio::sync::Mutex::default() })
    }

    /// Asks for the vectors of a catalog's tools that are not known yet.
    pub(super) async fn fill(&self, catalog: &Catalog) {
        let Ok(_turn) = self.filling.try_lock() else { return };
        let missing: Vec<String> = {
            let known = lock(&self.known);
            catalog.tools.iter().map(text_of).filter(|text| !known.contains_key(&key(text))).collect()
        };
        for batch in missing.chunks(BATCH) {
            match self.ask(batch, CATALOG).await {
                Ok(vectors) => {
                    let mut known = lock(&self.known);
                    if known.len() > MAX_KEPT {
                        known.clear();
                    }
                    known.extend(batch.iter().map(|text| key(text)).zip(vectors));
                }
                Err(why) => {
                    tracing::warn!("the tool search uses words only: {why}");
                    return;
                }
            }
        }
    }

    /// The tools nearest to a query; `None` while the vectors of most tools are not there, or when the endpoint fails.
    pub(super) async fn rank(&self, catalog: &Catalog, query: &str, limit: usize) -> Option<Vec<Hit>> {
        let vectors: Vec<Option<Vector>> = {
            let known = lock(&self.known);
            catalog.tools.iter().map(|tool| known.get(&key(&text_of(tool))).cloned()).collect()
        };
        if vectors.iter().flatten().count() * 2 < vectors.len() || vectors.is_empty() {
            return None;
        }
        let asked = self.ask(&[query.chars().take(MAX_CHARS).collect()], QUERY).await;
        let asked =
            asked.inspect_err(|why| tracing::warn!("a tool search uses words only: {why}")).ok()?.pop()?;
        let mut hits: Vec<Hit> = vectors
            .iter()
            .enumerate()
            .filter_map(|(at, vector)| {
                let vector = vector.as_ref().filter(|vector| vector.len() == asked.len())?;
                Some(Hit { at, score: vector.iter().zip(asked.iter()).map(|(a, b)| a * b).sum() })
            })
            .collect();
        hits.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.at.cmp(&b.at)));
        hits.truncate(limit);
        Some(hits)
    }

    /// Vectors of length 1, in the order of the texts. No error repeats a text or the key.
    async fn ask(&self, texts: &[String], within: Duration) -> Result<Vec<Vector>, String> {
        let url = format!("{}/embeddings", self.from.url.trim_end_matches('/'));
        let mut request =
            self.client.post(url).timeout(within).json(&json!({"model": self.from.model, "input": texts}));
        if let Some(key) = &self.from.key {
            request = request.bearer_auth(key.expose());
        }
        let response = request.send().await.map_err(|error| error.without_url().to_string())?;
        if !response.status().is_success() {
            return Err(format!("the embeddings endpoint answered {}", response.status()));
        }
        let answer: Answer = response.json().await.map_err(|error| error.without_url().to_string())?;
        let mut out = vec![None; texts.len()];
        for Row { index, mut embedding } in answer.data {
            let length = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
            if length > 0.0 {
                embedding.iter_mut().for_each(|x| *x /= length);
            }
            *out.get_mut(index)
                .ok_or("the embeddings endpoint returned an index that was not requested")? =
                Some(embedding.into());
        }
        out.into_iter()
            .collect::<Option<_>>()
            .ok_or_else(|| "the embeddings endpoint left out some vectors".to_owned())
    }
}

fn text_of(tool: &super::Tool) -> String {
    format!("{} {}: {}", tool.server, tool.name, tool.description).chars().take(MAX_CHARS).collect()
}

fn key(text: &str) -> Key {
    Sha256::digest(text.as_bytes()).into()
}
