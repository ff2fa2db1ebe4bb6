#!/bin/sh
# After an installation or an upgrade. Nomad is not restarted: running tasks are its, and only
# the administrator knows when that is convenient. Debian gives "configure" and the version
# before, RPM how many versions there are.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	# The shim is a program of this package; a new version of it finishes its moves.
	systemctl try-restart ebbtide-shim.service || true
fi

case "$1 $2" in
"configure " | "1 ")
	echo "Ebbtide is installed. What is next, on a Nomad client:"
	echo "  ebbtide setup              # writes /etc/nomad.d/ebbtide.hcl, after showing it"
	echo "  systemctl restart nomad    # running tasks go on"
	echo "  ebbtide doctor -config /etc/nomad.d"
	;;
configure\ * | "2 ")
	echo "Ebbtide is upgraded. The plugins that run are still the old ones, until Nomad is"
	echo "restarted; running tasks go on: systemctl restart nomad"
	;;
esac
