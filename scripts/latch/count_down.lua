-- latch/count_down: lower the count by one; the last one opens the latch and deletes it.
-- uses     lib/acl, lib/number, lib/remember
-- KEYS[1]  count_key
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of this request
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- returns  change: 1
local count_key, channel, memory_key = KEYS[1], KEYS[2], KEYS[3]
local publish, memory_ttl_ms = ARGV[1], ARGV[2]

if redis.call('exists', memory_key) == 1 then
  return 1
end
local left = read_number(count_key)
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
-- In all branches the first write is one that a full Redis allows.
if left and left <= 1 then
  redis.call('del', count_key)
else
  redis.call('del', memory_key)
  if left then
    redis.call('decr', count_key)
  end
end
remember(memory_key, 1, memory_ttl_ms)
if left == 1 then
  -- At any other count this message would make Redisson's waiters spin.
  redis.call(publish, channel, '0')
end
return 1
