#!/bin/sh
# systemd reads the units again, after an installation and a removal. Nothing is started or
# enabled: the relay needs a configuration, and a new version `relay migrate` first.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
