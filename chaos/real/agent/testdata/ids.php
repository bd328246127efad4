<?php
// Draws 5 IDs, as a request of a program would, and prints them; then how often it had to retry.
$retries = 0;
$until = microtime(true) + 10;
for ($n = 0; $n < 5;) {
    try {
        $redis = new Redis();
        $redis->connect($_SERVER['AGENT'], 0, 5);
        while ($n < 5) {
            $id = $redis->rawCommand('ID.NEXT');
            if ($id === false) {
                throw new RedisException($redis->getLastError());
            }
            echo $id, "\n";
            $n++;
        }
    } catch (RedisException $e) {
        if (microtime(true) > $until) {
            echo 'ERROR ', $e->getMessage(), "\n";
            break;
        }
        $retries++;
        usleep(20000);
    }
}
echo 'RETRIES ', $retries, "\n";
