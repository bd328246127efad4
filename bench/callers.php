<?php
// A request of callers.py: times CALLS calls, each of the first in a connection with the connect.
$times = ['first' => [], 'later' => []];
$command = explode(' ', $_SERVER['COMMAND']);
for ($n = 0; $n < $_SERVER['CALLS']; $n++) {
    $kind = $n % $_SERVER['PER_CONNECTION'] ? 'later' : 'first';
    $began = hrtime(true);
    if ($kind == 'first') {
        $redis = new Redis();
        $redis->connect($_SERVER['TARGET'], (int) $_SERVER['TARGET_PORT'], 5);
    }
    if ($redis->rawCommand(...$command) === false) {
        throw new RedisException($redis->getLastError());
    }
    $times[$kind][] = hrtime(true) - $began;
}
echo json_encode($times);
