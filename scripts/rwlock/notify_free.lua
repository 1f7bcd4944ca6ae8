-- rwlock/notify_free: tell the waiters that the lock's TTL became shorter.
-- In Redisson '1' wakes all threads that sleep, and '0' one more.
-- defines  notify_rest(keys, publish): keys are the KEYS of the calling script
local function notify_rest(keys, publish)
  redis.call(publish, keys[2], '1')
  redis.call(publish, keys[2], '0')
end
