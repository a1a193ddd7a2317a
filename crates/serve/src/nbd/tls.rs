//! Certificates and keys for TLS, from PEM files.
//!
//! TLS 1.2 and 1.3. With a file of certificate authorities, clients have to show a certificate of one of them.

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Certificates that a server presents to clients, and requires of them.
#[derive(Clone, Debug)]
pub struct TlsKeys(pub(super) Arc<ServerConfig>);

impl TlsKeys {
    /// Reads the server's certificate (with those between it and its authority), its private key, and the authorities
    /// of client certificates, where clients have to show one.
    ///
    /// # Errors
    /// A file cannot be read, has no PEM item of its kind, or its items do not fit together.
    pub fn load(certificate: &Path, key: &Path, client_ca: Option<&Path>) -> Result<Self, TlsError> {
        let chain = certificates(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| TlsError::new(key, format!("no private key in PEM: {error}")))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new(certificate, error.to_string()))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = rustls::RootCertStore::empty();
                for authority in certificates(path)? {
                    roots.add(authority).map_err(|error| TlsError::new(path, error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| TlsError::new(path, error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder
            .with_single_cert(chain, private)
            .map_err(|error| TlsError::new(certificate, format!("does not go with the key: {error}")))?;
        Ok(Self(Arc::new(config)))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |error| TlsError::new(path, format!("no certificates in PEM: {error}"));
    let found =
        CertificateDer::pem_file_iter(path).map_err(wrong)?.collect::<Result<Vec<_>, _>>().map_err(wrong)?;
    if found.is_empty() {
        return Err(TlsError::new(path, "no certificates in PEM: there is none".into()));
    }
    Ok(found)
}

/// Why TLS cannot be offered: a file, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError {
    path: PathBuf,
    what: String,
}

impl TlsError {
    fn new(path: &Path, what: String) -> Self {
        Self { path: path.into(), what }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.what)
    }
}

impl std::error::Error for TlsError {}
