#!/bin/bash
# build.sh VERSION FOLDER: builds Kubernetes' programs from Debian 12's source package into FOLDER/bin, and leaves
# nothing else there. setup.sh has installed what it needs. The packages come from the mirrors that apt knows.
set -euo pipefail
version=$1 folder=$2
work=$folder/work
mkdir -p "$work"/{parts,lists/partial,gopath/src/k8s.io} "$folder/bin"

say() { printf '%5d s  %s\n' "$SECONDS" "$*"; }

mirrors() {
  apt-get indextargets --format '$(ORIGIN) $(CODENAME) deb-src [signed-by=KEYS] $(REPO_URI) $(RELEASE) $(COMPONENT)' \
    'Created-By: Packages' | sed -n 's/^Debian bookworm[^ ]* //p' | sort -u
}
[ -n "$(mirrors)" ] || apt-get update -qq
mirrors | sed 's|KEYS|/usr/share/keyrings/debian-archive-keyring.gpg|' >"$work/parts/source.list"
sources=(-q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/parts" -o "Dir::State::Lists=$work/lists"
  -o "Dir::Cache::PkgCache=$work/pkg.bin" -o "Dir::Cache::SrcPkgCache=$work/src.bin" -o APT::Sandbox::User=root)
apt-get "${sources[@]}" update
cd "$work"
# Debian's own versions are 1.20.5+really1.20.2-1.1 and so on.
package=$(apt-cache "${sources[@]}" showsrc kubernetes | awk -v v="really$version-" '/^Version:/ && index($2, v) { print $2; exit }')
apt-get "${sources[@]}" source --download-only "kubernetes=$package"
apt-get -q -o APT::Sandbox::User=root download golang-github-modern-go-reflect2-dev
say "source of $package"

tar xzf kubernetes_*.orig.tar.gz
dpkg -x golang-github-modern-go-reflect2-dev_*.deb reflect2
rm -rf lists ./*.bin kubernetes_*.orig.tar.gz
mv "kubernetes-$version" gopath/src/k8s.io/kubernetes
cd gopath/src/k8s.io/kubernetes
# The version of reflect2 in vendor, 1.0.1, makes the API server crash when it is built with go 1.18 or newer.
rm vendor/github.com/modern-go/reflect2/*.go
find ../../../../reflect2 -path '*/modern-go/reflect2/*.go' ! -name '*_test.go' \
  -exec cp {} vendor/github.com/modern-go/reflect2/ \;
export PATH=/usr/lib/go-1.19/bin:$PATH GOCACHE=$work/gocache GOPATH=$work/gopath GOPROXY=off
# Nobody debugs these programs, and the compiler has more memory than it needs: a quarter of its time less.
export GOFLAGS='-trimpath -gcflags=all=-dwarf=false' GOGC=400
export GOTOOLCHAIN=local GO111MODULE=off CGO_ENABLED=0 HOME=$work
flags="-s -w -X k8s.io/kubernetes/vendor/k8s.io/component-base/version.gitVersion=v$version"

# All that is generated is in the source but this: what the API server says of its kinds, see Makefile.generated_files.
go build -o "$work/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
kinds=$(grep -Rl --include='*.go' --exclude='*_test.go' '+k8s:openapi-gen=' cmd pkg plugin vendor/k8s.io |
  grep -Ev '^vendor/k8s.io/(code-generator|sample-apiserver)/' | xargs -n1 dirname | LC_ALL=C sort -u |
  sed 's|^|k8s.io/kubernetes/|' | paste -sd,)
"$work/openapi-gen" -i "$kinds" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi -o "$GOPATH/src" \
  -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/report"
say "generated"

go build -tags providerless -ldflags "$flags" -o "$folder/bin/" \
  k8s.io/kubernetes/cmd/{kube-apiserver,kube-scheduler,kube-controller-manager,kubelet,kubectl}
say "programs"
chmod -R u+w "$work"
rm -rf "$work"
