"""The viewer: a web page about a run, and the server it asks; `dualform view RUN`, `dualform report RUN`."""
