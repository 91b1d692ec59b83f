//! TLS to the workers: what is trusted, who we are, and what went wrong, in words.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use chrono::DateTime;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore, SignatureScheme};
use serde::Deserialize;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, rustls};

use super::io::Io;
use super::trust::Verifier;
use crate::error::{Code, Error, Result};

const PROTOCOL: &[u8] = b"h2";
const NO_HTTP2: &str = "the worker does not offer HTTP/2 (ALPN h2)";

/// What the transport needs to know for TLS; all texts are PEM.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Certificates that sign those of workers; beside the JSON, as there are hundreds of KiB of them.
    #[serde(skip)]
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
    options: Options,
    /// Made for the first worker that needs it: what the system trusts takes 2 MiB of each process.
    config: OnceLock<Arc<ClientConfig>>,
}

impl Tls {
    /// Errors: `Load`, at the setting whose text cannot be used.
    pub fn new(options: Options) -> Result<Self> {
        let named = &options.server_name;
        if !named.is_empty() {
            server_name(named).ok_or_else(|| refused("worker_tls_server_name", "it is no host's name"))?;
        }
        let of_settings = options.pinned || !options.certificate.is_empty();
        let tls = Self { options, config: OnceLock::new() };
        if of_settings {
            tls.config()?;
        }
        Ok(tls)
    }

    fn config(&self) -> Result<&Arc<ClientConfig>> {
        if let Some(config) = self.config.get() {
            return Ok(config);
        }
        let config = Arc::new(configure(&self.options)?);
        Ok(self.config.get_or_init(|| config))
    }

    /// The name that a worker at `host` has to prove.
    pub fn name<'a>(&'a self, host: &'a str) -> &'a str {
        if self.renames() { &self.options.server_name } else { host }
    }

    /// Whether a name is given in place of workers' hosts.
    pub fn renames(&self) -> bool {
        !self.options.server_name.is_empty()
    }

    /// Makes a connection an encrypted one, to the worker that bears `name`. Errors: words.
    pub async fn encrypt(&self, socket: TcpStream, name: &str) -> std::result::Result<(Io, Doubt), String> {
        let expected = server_name(name).ok_or_else(|| format!("{name:?} is no host's name"))?;
        let mut config = ClientConfig::clone(self.config().map_err(|error| error.message)?);
        let passport = Arc::new(Passport::new(Arc::clone(&config.client_auth_cert_resolver)));
        config.client_auth_cert_resolver = Arc::clone(&passport) as Arc<dyn ResolvesClientCert>;
        let stream = TlsConnector::from(Arc::new(config)).connect(expected, socket).await;
        let doubt = passport.doubt();
        let stream = stream.map_err(|error| match of_worker(&error) {
            true => doubt.explain(words(error).to_string()),
            false => words(error).to_string(),
        })?;
        if stream.get_ref().1.alpn_protocol() != Some(PROTOCOL) {
            return Err(NO_HTTP2.to_owned());
        }
        Ok((Io::Tls(Box::new(stream)), doubt))
    }
}

fn configure(options: &Options) -> Result<ClientConfig> {
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
    let mut config = if !options.certificate.is_empty() {
        let chain = certificates(&options.certificate).map_err(|error| refused("worker_cert_file", error))?;
        let key = PrivateKeyDer::from_pem_slice(options.key.as_bytes());
        let key = key.map_err(|error| refused("worker_key_file", error))?;
        let built = builder.with_client_auth_cert(chain, key);
        built.map_err(|error| refused("worker_key_file", error))?
    } else {
        builder.with_no_client_auth()
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // Connections are few and long; each proves anew who is there.
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// What may be the reason when a worker leaves without a word, or with few.
#[derive(Clone, Copy, Debug)]
pub enum Doubt {
    None,
    /// It may expect TLS.
    Plain,
    /// It has asked who we are: we have no certificate.
    Unknown,
    /// It has asked who we are, and got our certificate.
    Known,
}

impl Doubt {
    /// Adds itself to an error's words.
    pub fn explain(self, error: String) -> String {
        match self {
            Self::None => error,
            Self::Plain => format!("{error} (if the worker speaks TLS, its URL begins with grpcs://)"),
            Self::Unknown => format!("the worker wants a client certificate: {error}"),
            Self::Known => format!("the worker may not accept our certificate: {error}"),
        }
    }
}

/// Our certificate, and whether it was asked for: some workers close the connection without a reason.
#[derive(Debug)]
struct Passport {
    own: Arc<dyn ResolvesClientCert>,
    asked: AtomicBool,
}

impl Passport {
    fn new(own: Arc<dyn ResolvesClientCert>) -> Self {
        Self { own, asked: AtomicBool::new(false) }
    }

    fn doubt(&self) -> Doubt {
        match (self.asked.load(Ordering::Relaxed), self.own.has_certs()) {
            (false, _) => Doubt::None,
            (true, false) => Doubt::Unknown,
            (true, true) => Doubt::Known,
        }
    }
}

impl ResolvesClientCert for Passport {
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.asked.store(true, Ordering::Relaxed);
        self.own.resolve(hints, schemes)
    }

    fn has_certs(&self) -> bool {
        self.own.has_certs()
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

/// Whether the worker has ended the handshake, not we.
fn of_worker(error: &io::Error) -> bool {
    match inner(error) {
        Some(error) => matches!(error, rustls::Error::AlertReceived(_)),
        None => true,
    }
}

fn inner(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Gives an error of TLS words that say what to do about it; others stay as they are.
pub fn words(error: io::Error) -> io::Error {
    let text = match inner(&error) {
        Some(rustls::Error::InvalidCertificate(reason)) => of_certificate(reason),
        Some(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)) => NO_HTTP2.to_owned(),
        Some(rustls::Error::AlertReceived(alert)) => format!("the worker ended TLS: {alert:?}"),
        Some(rustls::Error::InvalidMessage(reason)) => format!("the worker does not speak TLS ({reason:?})"),
        Some(other) => format!("TLS failed: {other}"),
        None if error.kind() == io::ErrorKind::UnexpectedEof => "the worker closed the connection".to_owned(),
        None => return error,
    };
    io::Error::new(error.kind(), text)
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
            let names: Vec<_> = presented.iter().map(|name| plain(name)).collect();
            match presented.is_empty() {
                true => format!("{WHOSE} is not for {expected}: it has no subjectAltName"),
                false => format!("{WHOSE} is not for {expected}, but for {}", names.join(", ")),
            }
        }
        other => format!("{WHOSE} cannot be trusted: {other}"),
    }
}

/// A name as rustls shows it, such as `DnsName("worker")`.
fn plain(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, name)| name.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

fn date(time: UnixTime) -> String {
    let seconds = i64::try_from(time.as_secs()).ok();
    let date = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    date.map_or_else(
        || format!("second {}", time.as_secs()),
        |date| date.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::trust::tests::PEM;

    fn error_of(options: Options) -> (String, String) {
        let error = Tls::new(options).err().unwrap();
        assert_eq!(error.code, Code::Load);
        (error.param, error.message)
    }

    #[test]
    fn what_cannot_be_used_is_told_at_its_setting() {
        assert!(Tls::new(Options::default()).is_ok());
        let roots = PEM.replace("MII", "AAA");
        assert_eq!(error_of(Options { roots, pinned: true, ..Options::default() }).0, "worker_ca_file");
        assert_eq!(error_of(Options { pinned: true, ..Options::default() }).0, "worker_ca_file");
        let broken = "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n";
        let roots = broken.to_owned();
        assert_eq!(error_of(Options { roots, pinned: true, ..Options::default() }).0, "worker_ca_file");
        let certificate = PEM.to_owned();
        assert_eq!(error_of(Options { certificate, ..Options::default() }).0, "worker_key_file");
        let server_name = "a name".to_owned();
        assert_eq!(error_of(Options { server_name, ..Options::default() }).0, "worker_tls_server_name");
    }

    #[test]
    fn broken_certificates_of_the_system_are_passed_over() {
        let roots = format!("{}{PEM}", PEM.replace("MII", "AAA"));
        let tls = Tls::new(Options { roots, ..Options::default() }).unwrap();
        assert!(tls.config().is_ok());
    }

    #[test]
    fn what_the_system_trusts_is_read_when_it_is_needed() {
        let of = |pinned| Tls::new(Options { roots: PEM.to_owned(), pinned, ..Options::default() }).unwrap();
        assert!(of(false).config.get().is_none());
        assert!(of(true).config.get().is_some());
        let broken = "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n".to_owned();
        let tls = Tls::new(Options { roots: broken, ..Options::default() }).unwrap();
        assert_eq!(tls.config().unwrap_err().param, "worker_ca_file");
    }

    #[test]
    fn the_key_is_not_shown() {
        let options = Options { key: "secret".to_owned(), ..Options::default() };
        assert!(!format!("{options:?}").contains("secret"));
    }

    #[test]
    fn hosts_are_names_or_addresses() {
        assert!(matches!(server_name("worker.example"), Some(ServerName::DnsName(_))));
        assert!(matches!(server_name("10.0.0.5"), Some(ServerName::IpAddress(_))));
        assert!(matches!(server_name("[::1]"), Some(ServerName::IpAddress(_))));
        assert!(server_name("[worker]").is_none());
    }

    fn said(error: rustls::Error) -> String {
        words(io::Error::other(error)).to_string()
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let of = |reason: CertificateError| said(reason.into());
        let time = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_767_225_600));
        let date = "2026-01-01 00:00:00 UTC";
        assert_eq!(
            of(CertificateError::ExpiredContext { time, not_after: time }),
            format!("the worker's certificate has expired, on {date}")
        );
        assert_eq!(
            of(CertificateError::NotValidYetContext { time, not_before: time }),
            format!("the worker's certificate is not valid yet, but from {date}")
        );
        let expected = server_name("worker.example").unwrap();
        assert_eq!(
            of(CertificateError::NotValidForNameContext { expected, presented: vec![] }),
            "the worker's certificate is not for worker.example: it has no subjectAltName"
        );
        assert_eq!(of(CertificateError::Revoked), "the worker's certificate cannot be trusted: Revoked");
        assert_eq!(said(rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol)), NO_HTTP2);
        let other = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(words(other).kind(), io::ErrorKind::ConnectionReset);
    }
}
