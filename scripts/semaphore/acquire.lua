-- semaphore/acquire: acquire permits, all or none.
-- uses     lib/acl, lib/epoch, lib/number, lib/polls, lib/primary
-- KEYS[1]  permits_key: permits left
-- KEYS[2]  channel: on which the release will be published
-- KEYS[3]  memory_key: of this acquisition: 1 and the epoch acquired, 2 released, 3 must not
--          acquire
-- KEYS[4]  epoch_key: of the semaphore
-- KEYS[5]  mark (optional): of clients that poll, if this one does
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  wanted (number): permits, at least 1
-- ARGV[4]  mark_ttl_ms (ms, optional)
-- returns  permits: {1, permits left, epoch} when acquired; {0, permits left} when there are too
--          few; {0} when no number is set; "over" when this acquisition has ended
local permits_key, channel, memory_key, epoch_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, memory_ttl_ms, wanted = ARGV[1], ARGV[2], ARGV[3]
local mark, mark_ttl_ms = KEYS[5], ARGV[4]

local memory, epoch = redis.call('get', memory_key), redis.call('get', epoch_key)
local acquired_in = memory and string.match(memory, '^1 (%d+)$')
if memory and not acquired_in then
  return 'over'
end
local left = read_number(permits_key)
local enough = left and left >= tonumber(wanted)
if acquired_in or not enough then
  require_primary(channel)
end
if acquired_in then
  redis.call('pexpire', memory_key, memory_ttl_ms) -- the client counts the day from this answer
  return {1, left or 0, tonumber(acquired_in)}
end
if not left then
  if epoch then
    redis.call('del', epoch_key) -- the semaphore has expired, or another program has deleted it
  end
  return {0}
end
if not enough then
  if mark then
    mark_poll(mark, mark_ttl_ms)
  end
  return {0, left}
end
local denied = publish_denied(publish, channel)
if denied then
  return denied
end
-- Both or neither: the user may lack the permission for one of the two commands.
redis.call('set', memory_key, '1 ' .. (epoch or '0'), 'px', memory_ttl_ms)
left = redis.pcall('decrby', permits_key, wanted)
if type(left) == 'table' then
  redis.call('del', memory_key)
  return left
end
if epoch then
  keep_epoch(epoch_key, permits_key)
end
return {1, left, tonumber(epoch or 0)}
