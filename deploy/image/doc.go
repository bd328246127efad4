// Command image makes container images without Docker: reproducible ones, and the
// list of what is in them.
//
//	image pack --file Dockerfile --context DIR --binary FILE --tag NAME:TAG -o IMAGE.tar
//	image sbom BINARY > NAME.spdx.json
//
// Pack reads the part of the Dockerfile language that an image FROM scratch needs:
// ARG, LABEL, ENV, COPY, USER, EXPOSE, HEALTHCHECK, STOPSIGNAL, ENTRYPOINT and CMD.
// Whatever else stands there is an error: it would be missing in silence. So the
// Dockerfile stays the one description of the image, and Docker can build it too.
//
// The archive is an OCI image layout and at once what «docker load» reads. All in
// it follows from the Dockerfile, the files and the binary's own build information
// (version, commit, time of the commit): nothing of the machine, the user, the
// folder or the hour. Two builds of a commit with one Go toolchain have one digest.
package main
