# The configuration of ebbtide-shim.service, which is off until you start it:
#
#   systemctl enable --now ebbtide-shim
#
# Every option may be left out; docs/shim.md, in /usr/share/doc/ebbtide, has all of them.
# `systemctl reload ebbtide-shim` has it read again.

# Decide and tell, and change nothing: a way to see what it would do.
#dry_run = true

nomad {
  # Where nothing is said: NOMAD_ADDR in /etc/ebbtide/shim.env, else http://127.0.0.1:4646.
  #address = "https://127.0.0.1:4646"

  # The unit hands over /etc/ebbtide/token. Without ACLs take this line out, and
  # LoadCredential=token:/etc/ebbtide/token out of the unit (systemctl edit --full).
  token_file = "/run/credentials/ebbtide-shim.service/token"

  # With TLS, and the unit's lines for it:
  #ca_file   = "/run/credentials/ebbtide-shim.service/ca.pem"
  #cert_file = "/run/credentials/ebbtide-shim.service/cert.pem"
  #key_file  = "/run/credentials/ebbtide-shim.service/key.pem"
}
