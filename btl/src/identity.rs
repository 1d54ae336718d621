use cableway_base::Rank;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use crate::Job;

/// The identity of this process in handshakes. Makes and checks proofs.
///
/// A proof is an HMAC-SHA-256 (RFC 2104) under the secret of the process that receives it: the job's secret, or the
/// secret that the process published for other jobs of its user. So a process checks a proof without a lookup of its
/// sender. The proof shows only that its sender knows the secret and sent these words. The words themselves must show
/// their freshness and their sender.
pub struct Identity {
    job: Job,
    digest: [u8; 16],
}

impl Identity {
    /// The length of a proof, in bytes.
    pub const PROOF: usize = 32;

    /// This process, as its job names it.
    pub fn new(job: &Job) -> Self {
        let mut digest = [0; 16];
        digest.copy_from_slice(&Sha256::digest(job.id.as_bytes())[..16]);
        Identity { digest, job: job.clone() }
    }

    /// The job whose process this is.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.job.rank
    }

    /// Returns the job's id on the wire: the first half of its SHA-256.
    pub fn digest(&self) -> [u8; 16] {
        self.digest
    }

    /// Returns whether this process decides conflicts with `peer`. Both processes agree on it.
    pub fn decides(&self, peer: Rank) -> bool {
        self.job.name_of(peer).is_some_and(|name| self.job.own_name() < name)
    }

    /// Proves to `peer` that this process sent the concatenated `words`. Returns `None` if the peer's secret is
    /// unavailable.
    pub fn prove(&self, peer: Rank, words: &[&[u8]]) -> Option<[u8; Self::PROOF]> {
        let secret = self.job.secret_for(peer)?;
        Some(mac(&secret, words).finalize().into_bytes().into())
    }

    /// Returns the proof that the process `name` must send with `words`. Returns `None` if the job has no secret.
    pub fn expected(&self, name: u64, words: &[&[u8]]) -> Option<[u8; Self::PROOF]> {
        Some(mac(&self.job.secret_from(name)?, words).finalize().into_bytes().into())
    }

    /// Returns whether `proof` is the [expected](Self::expected) one. Every wrong proof takes the same time.
    pub fn is_proof(&self, name: u64, words: &[&[u8]], proof: &[u8]) -> bool {
        self.job.secret_from(name).is_some_and(|secret| mac(&secret, words).verify_slice(proof).is_ok())
    }
}

fn mac(secret: &[u8; 32], words: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(secret).expect("HMAC takes keys of every length");
    words.iter().for_each(|word| mac.update(word));
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(secret: [u8; 32], rank: Rank) -> Identity {
        Identity::new(&Job::new("job".to_owned(), secret, rank, 4, 4))
    }

    #[test]
    fn a_proof_holds_for_its_words_and_its_secret_alone() {
        let proof = identity([7; 32], 0).prove(1, &[b"who", b"what"]).expect("a job has a secret");
        let peer = identity([7; 32], 1);
        assert!(peer.is_proof(0, &[b"who", b"what"], &proof));
        assert!(peer.is_proof(0, &[b"whowhat"], &proof), "words are concatenated");
        assert!(!peer.is_proof(0, &[b"who", b"else"], &proof));
        assert!(!peer.is_proof(0, &[b"who", b"what"], &proof[..31]));
        assert!(!identity([8; 32], 1).is_proof(0, &[b"who", b"what"], &proof));
    }

    #[test]
    fn a_proof_is_hmac_sha_256() {
        // Computed by Python's hmac module.
        let proof = identity([7; 32], 0).prove(1, &[b"cableway"]).expect("a job has a secret");
        let text: String = proof.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "713ace782e74a177a95dea8e216867374b2fff0c9cda4367de48bdbd947629ab");
    }

    #[test]
    fn a_proof_is_the_one_that_is_expected() {
        let proof = identity([7; 32], 0).prove(1, &[b"who"]);
        assert!(proof.is_some());
        assert_eq!(proof, identity([7; 32], 1).expected(0, &[b"who"]));
    }

    #[test]
    fn one_of_two_decides_and_both_know_which() {
        let (low, high) = (identity([7; 32], 1), identity([7; 32], 3));
        assert!(low.decides(3) && !high.decides(1));
    }
}
