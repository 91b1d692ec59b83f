//! TLS to the workers: what is trusted, who we are, and what went wrong, in words.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use chrono::DateTime;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls};

use super::io::{Io, TlsIo};
use super::trust::Verifier;
use crate::error::{Code, Error, Result};

const PROTOCOL: &[u8] = b"h2";

/// What the transport needs to know for TLS; all texts are PEM.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Certificates that sign those of workers.
    pub roots: String,
    /// A worker's own certificate may be among the roots.
    pub pinned: bool,
    /// Ours, with what signs it; empty: none.
    pub certificate: String,
    pub key: String,
    /// The name that workers' certificates bear; empty: their URL's host.
    pub server_name: String,
}

// The key is not to be shown.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pinned, server_name, .. } = self;
        f.debug_struct("Options")
            .field("pinned", pinned)
            .field("server_name", server_name)
            .finish_non_exhaustive()
    }
}

/// How connections to workers are encrypted.
pub struct Tls {
    config: Arc<ClientConfig>,
    /// In place of the host of a worker's URL.
    name: Option<String>,
    /// We can say who we are.
    known: bool,
}

impl Tls {
    /// Errors: `Load`, at the setting whose text cannot be used.
    pub fn new(options: &Options) -> Result<Self> {
        let provider = Arc::new(default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refused("", error))?;
        let roots = certificates(&options.roots).map_err(|error| refused("worker_ca_file", error))?;
        let mut store = RootCertStore::empty();
        let (usable, _) = store.add_parsable_certificates(roots.iter().cloned());
        if usable == 0 && options.pinned {
            return Err(refused("worker_ca_file", "it holds no certificate that can be used"));
        }
        let pinned = if options.pinned { roots } else { Vec::new() };
        let builder = match Verifier::new(store, pinned, provider) {
            Some(verifier) => builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)),
            None => builder.with_root_certificates(RootCertStore::empty()),
        };
        let known = !options.certificate.is_empty();
        let mut config = if known {
            let chain =
                certificates(&options.certificate).map_err(|error| refused("worker_cert_file", error))?;
            let key = PrivateKeyDer::from_pem_slice(options.key.as_bytes());
            let key = key.map_err(|error| refused("worker_key_file", error))?;
            let built = builder.with_client_auth_cert(chain, key);
            built.map_err(|error| refused("worker_key_file", error))?
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        let name = Some(options.server_name.clone()).filter(|name| !name.is_empty());
        if let Some(name) = &name {
            server_name(name).ok_or_else(|| refused("worker_tls_server_name", "it is no host's name"))?;
        }
        Ok(Self { config: Arc::new(config), name, known })
    }

    /// The name that a worker at `host` has to prove.
    pub fn name<'a>(&'a self, host: &'a str) -> &'a str {
        self.name.as_deref().unwrap_or(host)
    }

    /// Whether `name` is given in place of workers' hosts.
    pub fn renames(&self) -> bool {
        self.name.is_some()
    }

    /// Makes a connection an encrypted one, to the worker that bears `name`. Errors: words.
    pub async fn encrypt(&self, socket: TcpStream, name: &str) -> std::result::Result<Io, String> {
        let expected = server_name(name).ok_or_else(|| format!("{name:?} is no host's name"))?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let stream = connector.connect(expected, socket).await;
        let stream = stream.map_err(|error| self.words(&error).unwrap_or_else(|| error.to_string()))?;
        if stream.get_ref().1.alpn_protocol() != Some(PROTOCOL) {
            return Err("the worker does not offer HTTP/2 (ALPN h2)".to_owned());
        }
        Ok(Io::Tls(Box::new(TlsIo { stream, known: self.known })))
    }

    fn words(&self, error: &io::Error) -> Option<String> {
        words(error, self.known)
    }
}

fn refused(param: &str, why: impl std::fmt::Display) -> Error {
    Error::new(Code::Load, why.to_string()).at(param)
}

fn certificates(
    pem: &str,
) -> std::result::Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).collect()
}

/// A name, or an address, which IPv6 has in brackets.
fn server_name(host: &str) -> Option<ServerName<'static>> {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    match bare.parse::<IpAddr>() {
        Ok(address) => Some(ServerName::IpAddress(address.into())),
        Err(_) => ServerName::try_from(host.to_owned()).ok(),
    }
}

/// What an error of TLS means; None if it is another. `known`: we have a certificate.
pub fn words(error: &io::Error, known: bool) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(match error {
        rustls::Error::InvalidCertificate(reason) => of_certificate(reason),
        rustls::Error::AlertReceived(alert) => of_alert(*alert, known),
        rustls::Error::InvalidMessage(_) => format!("the worker does not speak TLS ({error})"),
        other => format!("TLS failed: {other}"),
    })
}

fn of_certificate(reason: &CertificateError) -> String {
    const WHOSE: &str = "the worker's certificate";
    match reason {
        CertificateError::Expired => format!("{WHOSE} has expired"),
        CertificateError::ExpiredContext { not_after, .. } => {
            format!("{WHOSE} has expired, on {}", date(*not_after))
        }
        CertificateError::NotValidYet => format!("{WHOSE} is not valid yet"),
        CertificateError::NotValidYetContext { not_before, .. } => {
            format!("{WHOSE} is not valid yet, but from {}", date(*not_before))
        }
        CertificateError::UnknownIssuer => format!("{WHOSE} is signed by an unknown authority"),
        CertificateError::NotValidForName => format!("{WHOSE} is for another name"),
        CertificateError::NotValidForNameContext { expected, presented } => {
            let expected = expected.to_str();
            match presented.is_empty() {
                true => format!("{WHOSE} is not for {expected}: it has no subjectAltName"),
                false => format!("{WHOSE} is not for {expected}, but for {}", presented.join(", ")),
            }
        }
        other => format!("{WHOSE} cannot be trusted: {other}"),
    }
}

fn of_alert(alert: AlertDescription, known: bool) -> String {
    use AlertDescription as A;
    let refused = matches!(
        alert,
        A::CertificateRequired
            | A::NoCertificate
            | A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
    );
    match alert {
        _ if refused && known => format!("the worker refuses our certificate ({alert:?})"),
        _ if refused => format!("the worker wants a client certificate ({alert:?})"),
        // TLS 1.2 has no word of its own for a certificate that is missing.
        A::HandshakeFailure if !known => {
            "the worker refuses to speak TLS with us; it may want a client certificate (HandshakeFailure)"
                .to_owned()
        }
        A::NoApplicationProtocol => "the worker does not offer HTTP/2 (ALPN h2)".to_owned(),
        _ => format!("the worker ended TLS: {alert:?}"),
    }
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let date = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    date.map_or_else(
        || format!("second {}", time.as_secs()),
        |date| date.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}
