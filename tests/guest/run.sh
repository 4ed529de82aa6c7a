#!/bin/sh
# Run a command in a small virtual machine that has control groups of version 2 only.
#
#   run.sh [--user] COMMAND        e.g.  run.sh 'cd /src && python3 -m pytest tests/sandbox'
#
# The machine sees this one's files, read-only, under a layer in memory; what it writes is gone
# afterwards. COMMAND goes to sh as root or, with --user, as the user `guest`, who has a range of
# subordinate ids and whom systemd has logged in. Its exit status is the script's.
#
# It needs qemu-system-x86, busybox-static, xz-utils and, for --user, uidmap, dbus-user-session and
# libpam-systemd. The kernel is the package KERNEL, fetched once and not installed: this Debian's,
# or for --user one that is new enough. No KVM is used: the machine's clock counts instructions, so
# nothing is out of time there because emulation is slow.
set -eu

memory=${MEMORY:-3G}
limit=${LIMIT:-3600}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/headrace-guest
modules='kernel/drivers/virtio kernel/fs/9p kernel/fs/fscache kernel/fs/netfs kernel/fs/overlayfs
         kernel/net/9p'

user= kernel=${KERNEL:-linux-image-amd64}
if [ "${1-}" = --user ]; then user=yes kernel=${KERNEL:-linux-image-6.12-amd64}; shift; fi
[ $# = 1 ] || { sed -n '4p' "$0" >&2; exit 2; }

# --- the kernel, and an initramfs with the few modules that reach the host's files -------------

fetch() {
  package=$(apt-cache depends "$kernel" | sed -n 's/.*Depends: \(linux-image-[^ ]*\).*/\1/p' | head -n 1)
  rm -rf "$home.new"
  mkdir -p "$home.new/deb" "$home.new/root/bin"
  (cd "$home.new/deb" && apt-get -qq download "${package:-$kernel}" 2> /dev/null && dpkg-deb -x ./*.deb . && rm ./*.deb)
  version=$(basename "$home.new"/deb/boot/vmlinuz-* | sed s/vmlinuz-//)
  cp "$home.new/deb/boot/vmlinuz-$version" "$home.new/vmlinuz"
  to=$home.new/root/lib/modules/$version
  mkdir -p "$to"
  for name in modules.builtin modules.order; do
    cp "$home.new/deb/lib/modules/$version/$name" "$to"
  done
  for name in $modules; do
    from=$home.new/deb/lib/modules/$version/$name
    [ ! -d "$from" ] || { mkdir -p "$to/$name" && cp "$from"/*.ko* "$to/$name"; }
  done
  find "$to" -name '*.xz' -exec xz -d {} +
  cp "$(command -v busybox)" "$home.new/root/bin/busybox"
  ln -s busybox "$home.new/root/bin/sh"
  busybox depmod -b "$home.new/root" "$version"
  rm -r "$home.new/deb"
  mv "$home.new" "$home"
}

home=$cache/$kernel
[ -d "$home" ] || fetch

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$home/root/." "$work/root"

# --- what the machine does ---------------------------------------------------------------------

cat > "$work/root/init" <<'END'
#!/bin/sh
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /host /layer /new
mount -t proc proc /proc
for name in virtio_pci 9pnet_virtio 9p overlay; do modprobe "$name"; done
mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose host /host
mount -t tmpfs -o size=75% layer /layer
mkdir /layer/u /layer/w
mount -t overlay -o lowerdir=/host,upperdir=/layer/u,workdir=/layer/w root /new
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts -o ptmxmode=666 pts /new/dev/pts
mount -t tmpfs shm /new/dev/shm
mount -t tmpfs -o mode=755 run /new/run
mount -t cgroup2 -o nsdelegate cgroup /new/sys/fs/cgroup
mkdir /new/run/guest
cp /start /command /login /new/run/guest/
umount /proc
exec switch_root /new /bin/sh /run/guest/start
END

cat > "$work/root/start" <<'END'
export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb
stty -onlcr
ip link set lo up 2>/dev/null || busybox ip link set lo up
[ ! -s /run/guest/login ] || exec sh /run/guest/login
top=/sys/fs/cgroup
echo '+cpu +memory +pids' > $top/cgroup.subtree_control
mkdir -p $top/guest/shell
cd /
sh -c "echo \$\$ > $top/guest/shell/cgroup.procs; exec setsid sh /run/guest/command" < /dev/null
echo $? > /dev/ttyS1
busybox poweroff -f
END

# Of this machine's services, systemd starts what a login needs and nothing else.
: > "$work/root/login"
[ -z "$user" ] || cat > "$work/root/login" <<'END'
echo 'guest:x:4242:4242::/home/guest:/bin/sh' >> /etc/passwd
echo 'guest:x:4242:' >> /etc/group
echo 'guest:*:20000:0:99999:7:::' >> /etc/shadow
echo 'guest:100000:65536' | tee /etc/subuid > /etc/subgid
mkdir -p /home/guest
chown 4242:4242 /home/guest
chmod 755 /root
: > /etc/fstab
units=/etc/systemd/system
for unit in /lib/systemd/system/*.wants/* $units/*.wants/*; do
  case ${unit##*/} in
    dbus.* | systemd-logind.service | systemd-user-sessions.service) ;;
    *) ln -sf /dev/null "$units/${unit##*/}" ;;
  esac
done
for of in system user; do
  mkdir -p /etc/systemd/$of.conf.d
  printf '[Manager]\nDefaultStandardOutput=null\nDefaultStandardError=null\n' \
    > /etc/systemd/$of.conf.d/guest.conf
done
cat > $units/guest.target <<'UNIT'
[Unit]
Requires=basic.target guest.service
UNIT
cat > $units/guest.service <<'UNIT'
[Unit]
Wants=dbus.service systemd-logind.service
After=dbus.service systemd-logind.service
[Service]
Type=oneshot
TimeoutStartSec=infinity
StandardOutput=append:/dev/ttyS0
StandardError=append:/dev/ttyS0
ExecStart=su -l guest -c 'sh /run/guest/command'
ExecStopPost=sh -c 'echo $EXIT_STATUS > /dev/ttyS1; busybox poweroff -f'
UNIT
exec /lib/systemd/systemd --unit=guest.target --show-status=0 --log-target=null
END

printf '%s\n' "$1" > "$work/root/command"
chmod 755 "$work/root/init"
(cd "$work/root" && find . | busybox cpio -o -H newc 2>/dev/null) > "$work/initramfs"

# --- the machine -------------------------------------------------------------------------------

timeout --foreground "$limit" nice -n 19 qemu-system-x86_64 -nodefaults -no-user-config -no-reboot \
  -display none -accel tcg -icount shift=0 -rtc clock=vm -cpu max -m "$memory" \
  -kernel "$home/vmlinuz" -initrd "$work/initramfs" \
  -append 'console=ttyS0 quiet loglevel=4 panic=-1 cgroup_no_v1=all' \
  -serial stdio -serial "file:$work/status" \
  -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap < /dev/null

status=$(tr -dc 0-9 < "$work/status")
[ -n "$status" ] || { echo 'the machine ended without a result' >&2; exit 125; }
exit "$status"
