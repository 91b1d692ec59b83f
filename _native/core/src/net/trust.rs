//! Whom we trust: those whose certificates the roots have signed, and, where a root's file says so, itself.
//!
//! A certificate that signs itself is often a CA's by its own words, as `openssl req -x509` makes it. By the
//! letter of RFC 5280 such a one is nobody's own; who puts it into the file of trusted ones means it all the same.

use std::fmt;
use std::sync::Arc;

use chrono::{NaiveDate, NaiveDateTime};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_rustls::rustls;

pub struct Verifier {
    signed: Arc<WebPkiServerVerifier>,
    /// Certificates that are trusted as they are.
    pinned: Vec<CertificateDer<'static>>,
}

impl Verifier {
    /// None: there are no roots at all.
    pub fn new(
        roots: RootCertStore,
        pinned: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> Option<Self> {
        let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()?;
        Some(Self { signed, pinned })
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("pinned", &self.pinned.len()).finish_non_exhaustive()
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if !self.pinned.contains(own) {
            return self.signed.verify_server_cert(own, between, name, ocsp, now);
        }
        let (not_before, not_after) = validity(own).ok_or(CertificateError::BadEncoding)?;
        if now < not_before {
            return Err(CertificateError::NotValidYetContext { time: now, not_before }.into());
        }
        if now > not_after {
            return Err(CertificateError::ExpiredContext { time: now, not_after }.into());
        }
        verify_server_name(&ParsedCertificate::try_from(own)?, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, own, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, own, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// From when to when a certificate is valid (RFC 5280, 4.1).
fn validity(certificate: &[u8]) -> Option<(UnixTime, UnixTime)> {
    let (mut body, _) = expect(SEQUENCE, expect(SEQUENCE, certificate)?.0)?;
    if body.first() == Some(&VERSION) {
        body = element(body)?.2;
    }
    // Serial number, signature algorithm, issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        body = expect(tag, body)?.1;
    }
    let (_, not_before, rest) = element(expect(SEQUENCE, body)?.0).and_then(timed)?;
    let (_, not_after, _) = element(rest).and_then(timed)?;
    Some((not_before, not_after))
}

type Element<'a> = (u8, &'a [u8], &'a [u8]);

fn timed((tag, content, rest): Element<'_>) -> Option<(u8, UnixTime, &[u8])> {
    Some((tag, time(tag, content)?, rest))
}

/// Content of an element that has to have this tag, and what follows it.
fn expect(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    element(der).filter(|found| found.0 == tag).map(|(_, content, rest)| (content, rest))
}

/// Tag, content and rest of DER.
fn element(der: &[u8]) -> Option<Element<'_>> {
    let (&[tag, short], rest) = der.split_first_chunk()?;
    let (len, rest) = match short {
        0..=0x7f => (usize::from(short), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
            (digits.iter().fold(0, |len, &digit| len << 8 | usize::from(digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// `YYMMDDHHMMSSZ`, whose years are those from 1950 to 2049, or `YYYYMMDDHHMMSSZ`.
fn time(tag: u8, content: &[u8]) -> Option<UnixTime> {
    let text = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
    let years = match tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };
    if text.len() != years + 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |at: usize| text[at..at + 2].parse::<u32>().ok();
    let year: i32 = text[..years].parse().ok()?;
    let year = match tag {
        UTC_TIME if year < 50 => 2000 + year,
        UTC_TIME => 1900 + year,
        _ => year,
    };
    let date = NaiveDate::from_ymd_opt(year, number(years)?, number(years + 2)?)?;
    let time: NaiveDateTime = date.and_hms_opt(number(years + 4)?, number(years + 6)?, number(years + 8)?)?;
    let seconds = time.and_utc().timestamp();
    // Whatever was before 1970 is over.
    Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::try_from(seconds).unwrap_or(0))))
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use rustls::crypto::ring::default_provider;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    /// A CA's certificate for worker.example that signs itself, valid from 2026 (a UTCTime) to 2051 (the other kind).
    pub const PEM: &str = "-----BEGIN CERTIFICATE-----
MIIBTzCB96ADAgECAgEBMAoGCCqGSM49BAMCMBkxFzAVBgNVBAMMDndvcmtlci5l
eGFtcGxlMCAXDTI2MDEwMTAwMDAwMFoYDzIwNTEwMTAxMDAwMDAwWjAZMRcwFQYD
VQQDDA53b3JrZXIuZXhhbXBsZTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBec
9ASaWZa/jFECVqF4euvgWIDLCuujMc7U2esPKr6/fuMgOlGNGBymT8cOS5cW+gbK
Q9oRRDA4mU6M/osR+sijLjAsMA8GA1UdEwEB/wQFMAMBAf8wGQYDVR0RBBIwEIIO
d29ya2VyLmV4YW1wbGUwCgYIKoZIzj0EAwIDRwAwRAIgKWIBSgwu4KTNnpagJeDE
zdeBKk8zWdleiRfUO925lP4CIG2qoz58z609q/5YOqYLGU32rTgRqnr0sF6AFrMl
HmPA
-----END CERTIFICATE-----
";
    const FROM: u64 = 1_767_225_600;
    const TO: u64 = 2_556_144_000;

    fn certificate() -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(PEM.as_bytes()).unwrap()
    }

    fn at(seconds: u64) -> UnixTime {
        UnixTime::since_unix_epoch(Duration::from_secs(seconds))
    }

    fn verdict(pinned: bool, name: &'static str, seconds: u64) -> Result<ServerCertVerified, Error> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate()).unwrap();
        let pinned = if pinned { vec![certificate()] } else { Vec::new() };
        let verifier = Verifier::new(roots, pinned, Arc::new(default_provider())).unwrap();
        let name = ServerName::try_from(name).unwrap();
        verifier.verify_server_cert(&certificate(), &[], &name, &[], at(seconds))
    }

    #[test]
    fn a_certificate_of_the_file_is_trusted_for_its_name_and_time() {
        assert!(verdict(true, "worker.example", FROM).is_ok());
        assert!(verdict(true, "worker.example", TO).is_ok());
        let wrong = |name, seconds| match verdict(true, name, seconds).unwrap_err() {
            Error::InvalidCertificate(reason) => reason,
            other => panic!("{other}"),
        };
        assert!(matches!(wrong("worker.example", FROM - 1), CertificateError::NotValidYetContext { .. }));
        assert!(matches!(wrong("worker.example", TO + 1), CertificateError::ExpiredContext { .. }));
        assert!(matches!(wrong("other.example", FROM), CertificateError::NotValidForNameContext { .. }));
    }

    #[test]
    fn a_ca_of_the_system_is_no_worker() {
        assert!(verdict(false, "worker.example", FROM).is_err());
    }

    #[test]
    fn the_time_of_validity_is_read() {
        assert_eq!(validity(&certificate()), Some((at(FROM), at(TO))));
    }

    #[test]
    fn a_certificate_cut_anywhere_is_none() {
        let whole = certificate();
        for end in 0..whole.len() {
            assert_eq!(validity(&whole[..end]), None, "{end}");
        }
        for place in 0..whole.len().min(120) {
            let mut bent = whole.to_vec();
            for value in [0, 0x7f, 0x80, 0x84, 0xff] {
                bent[place] = value;
                // It may read as another time, but it ends.
                let _ = validity(&bent);
            }
        }
    }

    #[test]
    fn times_are_of_two_kinds() {
        let seconds = |tag, text: &str| time(tag, text.as_bytes()).map(|time| time.as_secs());
        assert_eq!(seconds(UTC_TIME, "700101000001Z"), Some(1));
        assert_eq!(seconds(UTC_TIME, "500101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(seconds(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
        for wrong in
            ["", "Z", "7001010000Z", "700101000000", "701301000000Z", "70010100000+Z", "7\u{e9}0101000000Z"]
        {
            assert_eq!(seconds(UTC_TIME, wrong), None, "{wrong}");
        }
        assert_eq!(seconds(INTEGER, "700101000000Z"), None);
    }
}
