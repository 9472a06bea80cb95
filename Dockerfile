# docker build .                     the relay: one static program and nothing else
# docker build --build-arg TAGS=slim .   the same without SQLite and the demo
# docker build --target examples .   the example programs of docker-compose.yml

FROM --platform=$BUILDPLATFORM golang:1.26.8 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG TARGETOS
ARG TARGETARCH
ARG RELEASE
# slim: without SQLite and the demo.
ARG TAGS
# timetzdata: the program contains the time zones for schedules.
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH \
    go build -trimpath -tags "timetzdata $TAGS" -ldflags "-s -w -X main.release=$RELEASE" -o /out/ \
    ./cmd/relay ./examples/producer ./examples/jetstream
# Certificate authorities, and /tmp for `relay demo`.
RUN mkdir -p /rootfs/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /rootfs/etc/ssl/certs/ \
    && mkdir -m 1777 /rootfs/tmp

FROM scratch AS base
COPY --from=build /rootfs/ /
USER 65532:65532

FROM base AS examples
COPY --from=build /out/producer /out/jetstream /

FROM base AS relay
COPY --from=build /out/relay /relay
ENV RELAY_CONFIG=/etc/relay/relay.yaml
EXPOSE 7070
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/relay", "health"]
ENTRYPOINT ["/relay"]
