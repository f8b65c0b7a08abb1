//! Finds the tools that a sentence is about, among thousands, by their words.
//!
//! BM25 over four fields (name, server, description, parameters), in memory: names are split where their parts meet, words
//! are stemmed, words of one meaning or subject stand in for each other at a discount (`search/synonyms.txt`), and words that
//! people use in any request count for little (`search/weights.txt`). Both lists are data. What surprises: a word of the
//! query scores once, by the best of what stands in for it, so that a long list of synonyms is not louder than the word.

use std::collections::HashMap;
use std::sync::LazyLock;

use rust_stemmers::{Algorithm, Stemmer};

/// Words of a query that are looked at; a longer one is cut, which bounds the time.
const MAX_QUERY_WORDS: usize = 60;
/// Characters of one description that are looked at.
const MAX_CHARS: usize = 4_000;
/// BM25's saturation and its correction for length.
const K1: f32 = 0.9;
const B: f32 = 0.6;
/// What a word in each field counts.
const NAME: f32 = 2.0;
const SERVER: f32 = 0.7;
const DESCRIPTION: f32 = 1.7;
const PARAMETERS: f32 = 0.3;
/// A substitute for a word, as a part of the word itself.
const SAME_MEANING: f32 = 0.5;
const SAME_SUBJECT: f32 = 0.3;
/// The constant of reciprocal rank fusion: small, because only the first few matter.
const FUSION: f32 = 10.0;

/// Words that do not distinguish tools.
const STOP_WORDS: &str = "a about above after again against all am an and any are at be been before being below between both \
but by can could d did do does doing don down during each few for from give had has have he help here how i if in into is it \
its just let lets like ll m me more most my need no nor not now of off on once only or other our out over own please re s same \
she should show so some such t tell than that the them then there these they this those through to too under up us ve very \
want was we were what when where which who whom why will with would you your";

/// What is known of a tool for the search.
#[derive(Debug, Clone, Default)]
pub struct Entry<'a> {
    /// The server that offers it.
    pub server: &'a str,
    /// Its own name.
    pub name: &'a str,
    /// What its server says about it.
    pub description: &'a str,
    /// Names and descriptions of its parameters.
    pub parameters: Vec<(&'a str, &'a str)>,
}

/// A tool that was found: its place in the list the index was made of, and how well it fits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hit {
    /// Place in the list.
    pub at: usize,
    /// Only good for comparing hits of one query.
    pub score: f32,
}

/// An index over a list of tools. Made once for a catalog; a search only reads.
#[derive(Debug, Default)]
pub struct Index {
    postings: HashMap<String, Vec<(u32, f32)>>,
    lengths: Vec<f32>,
    mean: f32,
    names: HashMap<String, Vec<u32>>,
}

impl Index {
    /// Makes the index.
    pub fn of<'a>(entries: impl IntoIterator<Item = Entry<'a>>) -> Self {
        let mut index = Self::default();
        for (at, entry) in (0u32..).zip(entries) {
            let mut counts: HashMap<String, f32> = HashMap::new();
            let mut length = 0.0;
            let mut add = |text: &str, weight: f32| {
                for word in words(text).filter(|word| !is_stop_word(word)) {
                    length += weight;
                    *counts.entry(stem(&word)).or_default() += weight;
                }
            };
            add(entry.name, NAME);
            add(entry.server, SERVER);
            add(entry.description, DESCRIPTION);
            for (name, description) in &entry.parameters {
                add(name, PARAMETERS);
                add(description, PARAMETERS);
            }
            index.lengths.push(length);
            for (stem, count) in counts {
                index.postings.entry(stem).or_default().push((at, count));
            }
            for name in [entry.name.to_lowercase(), format!("{}.{}", entry.server, entry.name).to_lowercase()]
            {
                index.names.entry(name).or_default().push(at);
            }
        }
        index.mean = index.lengths.iter().sum::<f32>() / index.lengths.len().max(1) as f32;
        index
    }

    /// The tools that fit best, at most `limit`, best first. A tool's own name finds it before all others.
    pub fn search(&self, query: &str, limit: usize) -> Vec<Hit> {
        let mut scores: HashMap<u32, f32> = HashMap::new();
        let mut seen = Vec::new();
        for word in words(query).filter(|word| !is_stop_word(word)).take(MAX_QUERY_WORDS) {
            let stem = stem(&word);
            if seen.contains(&stem) {
                continue;
            }
            for (at, score) in self.best_of(&stem) {
                *scores.entry(at).or_default() += score;
            }
            seen.push(stem);
        }
        for at in self.names.get(&query.trim().to_lowercase()).into_iter().flatten() {
            *scores.entry(*at).or_default() += 1_000.0;
        }
        let mut hits: Vec<Hit> =
            scores.into_iter().map(|(at, score)| Hit { at: at as usize, score }).collect();
        let order = |a: &Hit, b: &Hit| b.score.total_cmp(&a.score).then(a.at.cmp(&b.at));
        if hits.len() > limit {
            hits.select_nth_unstable_by(limit, order);
            hits.truncate(limit);
        }
        hits.sort_unstable_by(order);
        hits
    }

    /// The score that one word of a query gives each tool: the best of the word and its substitutes.
    fn best_of(&self, stem: &str) -> HashMap<u32, f32> {
        let lists = &*LISTS;
        let weight = lists.weights.get(stem).copied().unwrap_or(1.0);
        let mut best: HashMap<u32, f32> = HashMap::new();
        let own = std::iter::once((stem, 1.0));
        let others =
            lists.synonyms.get(stem).into_iter().flatten().map(|(other, part)| (other.as_str(), *part));
        for (term, part) in own.chain(others) {
            let Some(postings) = self.postings.get(term) else { continue };
            let rarity = self.rarity(postings.len()) * part * weight;
            for (at, count) in postings {
                let length = self.lengths[*at as usize] / self.mean;
                let score = rarity * count * (K1 + 1.0) / (count + K1 * (1.0 - B + B * length));
                let entry = best.entry(*at).or_default();
                *entry = entry.max(score);
            }
        }
        best
    }

    fn rarity(&self, documents: usize) -> f32 {
        let (all, some) = (self.lengths.len() as f32, documents as f32);
        (1.0 + (all - some + 0.5) / (some + 0.5)).ln()
    }
}

/// Two rankings in one, by rank: scores of different kinds do not compare.
pub fn fuse(rankings: &[Vec<Hit>], limit: usize) -> Vec<Hit> {
    let mut scores: HashMap<usize, f32> = HashMap::new();
    for ranking in rankings {
        for (rank, hit) in ranking.iter().enumerate() {
            *scores.entry(hit.at).or_default() += 1.0 / (FUSION + rank as f32 + 1.0);
        }
    }
    let mut hits: Vec<Hit> = scores.into_iter().map(|(at, score)| Hit { at, score }).collect();
    hits.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then(a.at.cmp(&b.at)));
    hits.truncate(limit);
    hits
}

/// The lists that come with the program, by stem.
struct Lists {
    synonyms: HashMap<String, Vec<(String, f32)>>,
    weights: HashMap<String, f32>,
}

static LISTS: LazyLock<Lists> = LazyLock::new(|| Lists {
    synonyms: synonyms(include_str!("search/synonyms.txt")),
    weights: weights(include_str!("search/weights.txt")),
});

fn synonyms(list: &str) -> HashMap<String, Vec<(String, f32)>> {
    let mut out: HashMap<String, Vec<(String, f32)>> = HashMap::new();
    for line in list.lines() {
        let (part, group) = match line.split_once(' ') {
            Some(("=", group)) => (SAME_MEANING, group),
            Some(("~", group)) => (SAME_SUBJECT, group),
            _ => continue,
        };
        let stems: Vec<String> = words(group).map(|word| stem(&word)).collect();
        for of in &stems {
            let others = out.entry(of.clone()).or_default();
            for stem in stems.iter().filter(|stem| *stem != of) {
                match others.iter_mut().find(|(known, _)| known == stem) {
                    Some((_, known)) => *known = known.max(part),
                    None => others.push((stem.clone(), part)),
                }
            }
        }
    }
    out
}

fn weights(list: &str) -> HashMap<String, f32> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    let rows =
        lines.filter_map(|line| line.split_once(' ')).filter_map(|(n, stems)| Some((n.parse().ok()?, stems)));
    rows.flat_map(|(weight, stems)| stems.split_whitespace().map(move |stem| (stem.to_owned(), weight)))
        .collect()
}

fn is_stop_word(word: &str) -> bool {
    STOP.binary_search(&word).is_ok()
}

static STOP: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut stop: Vec<&str> = STOP_WORDS.split_whitespace().collect();
    stop.sort_unstable();
    stop
});

fn stem(word: &str) -> String {
    thread_local!(static ENGLISH: Stemmer = Stemmer::create(Algorithm::English));
    if word.is_ascii() { ENGLISH.with(|stemmer| stemmer.stem(word).into_owned()) } else { word.to_owned() }
}

/// The words of a text or a name in lower case: `listCommits`, `list_commits` and `HTTPServer2` fall apart, and scripts that
/// write no spaces are taken character by character.
fn words(text: &str) -> impl Iterator<Item = String> {
    let mut out = Vec::new();
    let mut word = String::new();
    let mut chars = text.chars().take(MAX_CHARS).peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        let next_is_lower = chars.peek().is_some_and(|next| next.is_lowercase());
        let is_border = (c.is_numeric() != before.is_numeric())
            || (c.is_uppercase() && (before.is_lowercase() || (before.is_uppercase() && next_is_lower)))
            || is_unspaced(c)
            || is_unspaced(before);
        if (is_border || !c.is_alphanumeric()) && !word.is_empty() {
            out.push(std::mem::take(&mut word));
        }
        if c.is_alphanumeric() {
            word.extend(c.to_lowercase());
        }
        before = c;
    }
    if !word.is_empty() {
        out.push(word);
    }
    out.into_iter()
}

/// Chinese, Japanese and the like, which put no spaces between words.
fn is_unspaced(c: char) -> bool {
    matches!(c, '\u{0e00}'..='\u{0e7f}' | '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<String> {
        words(text).collect()
    }

    #[test]
    fn names_fall_apart_into_words() {
        assert_eq!(split("listCommits"), ["list", "commits"]);
        assert_eq!(split("get_HTTPServer2-url.x"), ["get", "http", "server", "2", "url", "x"]);
        assert_eq!(split("天气 wetter"), ["天", "气", "wetter"]);
        assert_eq!(split("don't \u{0} 'NEAR' \"*\""), ["don", "t", "near"]);
    }

    fn index() -> Index {
        let entry = |server, name, description| Entry { server, name, description, parameters: Vec::new() };
        Index::of([
            entry("github", "list_commits", "List the commits of a repository"),
            entry("weather", "forecast", "Weather of the next days at a place"),
            entry("shop", "find_film", "Films on sale"),
            entry("wetter", "vorhersage", "天气预报"),
        ])
    }

    #[test]
    fn a_sentence_finds_its_tool_and_a_name_finds_itself() {
        let index = index();
        let first = |query: &str| index.search(query, 5).first().map(|hit| hit.at);
        assert_eq!(first("Could you show me what was committed to my repo?"), Some(0));
        assert_eq!(first("will it rain tomorrow"), Some(1));
        assert_eq!(first("movie"), Some(2), "a synonym");
        assert_eq!(first("shop.find_film"), Some(2));
        assert_eq!(first("天气"), Some(3));
        assert_eq!(first("the of and"), None);
        assert_eq!(first(""), None);
        assert!(index.search("list commits forecast film", 2).len() == 2);
        assert!(Index::of([]).search("anything", 5).is_empty());
    }

    #[test]
    fn fusion_puts_first_what_both_rankings_hold() {
        let hits = |places: &[usize]| places.iter().map(|at| Hit { at: *at, score: 0.0 }).collect::<Vec<_>>();
        let fused = fuse(&[hits(&[3, 1, 2]), hits(&[5, 1, 6])], 3);
        assert_eq!(fused[0].at, 1);
        assert_eq!(fused.len(), 3);
    }
}
