-- semaphore/release: release the permits of one acquisition, once, or hand them off.
-- The successor waits for as many permits or fewer, and gets them at once, unless the semaphore has
-- been made smaller meanwhile. A late copy of the acquisition acquires nothing. Permits of an
-- earlier semaphore of the same name are lost.
-- uses     lib/limit, lib/number, lib/publish_permits
-- KEYS[1]  permits_key: permits left
-- KEYS[2]  channel
-- KEYS[3]  memory_key: of the acquisition: 1 and the epoch acquired, 2 released, 3 must not acquire
-- KEYS[4]  epoch_key: of the semaphore
-- KEYS[5]  successor_memory (optional): memory of the successor's acquisition, if there is one;
--          without one, the mark of clients that poll, if the client asks for it
-- ARGV[1]  publish (command)
-- ARGV[2]  memory_ttl_ms (ms)
-- ARGV[3]  permits (number)
-- ARGV[4]  only_if_acquired (flag): release only if the memory says that the acquisition acquired
-- ARGV[5]  known_epoch (number): in which it acquired, where the memory does not say that
-- ARGV[6]  remembers_release (flag): a copy of the acquisition may come, or the memory has ended.
--          Else a copy of this request finds no memory, and its answer is 0
-- ARGV[7]  successor_permits (number, optional): missing: no successor
-- ARGV[8]  successor_memory_ttl_ms (ms, optional)
-- returns  released {epoch number}:
--          0 when there was nothing to release;
--          -1 when the semaphore is gone;
--          {permits left, epoch} when the successor has its permits now;
--          else 1 and how many received the release message, as {that number, "polled"} if
--            clients poll
local permits_key, channel, memory_key, epoch_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local successor_memory = KEYS[5]
local publish, memory_ttl_ms, permits, only_if_acquired = ARGV[1], ARGV[2], ARGV[3], ARGV[4] ~= '0'
local known_epoch, remembers_release = ARGV[5], ARGV[6] ~= '0'
local successor_permits, successor_memory_ttl_ms = ARGV[7], ARGV[8]

local memory, epoch = redis.call('get', memory_key), redis.call('get', epoch_key)
epoch = epoch or '0'
if memory == '3' then
  return -1
elseif memory == '2' then
  local handed_off = successor_permits
    and string.match(redis.call('get', successor_memory) or '', '^1 (%d+)$')
  return handed_off and {read_number(permits_key) or 0, tonumber(handed_off)} or 1
end
local acquired_in = memory and string.match(memory, '^1 (%d+)$')
  or not only_if_acquired and known_epoch
local before = acquired_in == epoch and read_number(permits_key)
-- The first write is one that a full Redis allows.
redis.call('del', memory_key)
if not before then
  if acquired_in or remembers_release then
    redis.call('set', memory_key, '3', 'px', memory_ttl_ms)
  end
  return acquired_in and -1 or 0
end
local returned = permits
-- A successor that has its permits already, or has given up, must not get them. Nor may it get
-- what is missing: fewer than 0 are left after permits were removed.
local hands_off = successor_permits and before + permits >= tonumber(successor_permits)
  and redis.call('set', successor_memory, '1 ' .. epoch, 'px', successor_memory_ttl_ms, 'nx')
if hands_off then
  returned = returned - successor_permits
end
-- Others may have added as many permits as there may be, while these were taken.
returned = math.min(returned, math.max(most_permits - before, 0))
local left = returned == 0 and before or redis.call('incrby', permits_key, returned)
if remembers_release then
  redis.call('set', memory_key, '2', 'px', memory_ttl_ms)
end
local receivers = returned ~= 0 and publish_permits(publish, channel, left) or 0
if hands_off then
  return {left, tonumber(epoch)}
end
local is_polled = not successor_permits and successor_memory
  and redis.call('exists', successor_memory) == 1
return is_polled and {1 + receivers, 'polled'} or 1 + receivers
