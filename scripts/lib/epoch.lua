-- lib/epoch: tell the successive semaphores of one name apart.
--
-- A permit of a plain semaphore has no id, so a semaphore that was deleted and set again would get
-- back the permits of the old one, and have too many. Each semaphore that this library sets has an
-- epoch, a number. An acquisition gets it, and its release passes it back. A semaphore of Redisson
-- has no epoch: that is 0.
-- defines  new_epoch(epoch_key, request_key): give a semaphore that was just set an epoch of its
--          own;
--          keep_epoch(epoch_key, permits_key): keep the epoch for as long as the semaphore

local function new_epoch(epoch_key, request_key)
  -- A request key is unique. 52 bits of its digest are an integer for Lua.
  local epoch = tonumber(string.sub(redis.sha1hex(request_key), 1, 13), 16)
  redis.call('set', epoch_key, string.format('%.0f', epoch))
end

local epoch_reserve = 86400000 -- ms

-- keep_epoch gives the epoch the TTL of the semaphore plus a day, so that nothing stays of a
-- semaphore that has expired. The day is for a semaphore whose TTL is extended later.
local function keep_epoch(epoch_key, permits_key)
  local ttl_ms = redis.call('pttl', permits_key)
  if ttl_ms > 0 then
    redis.call('pexpire', epoch_key, ttl_ms + epoch_reserve)
  else
    redis.call('persist', epoch_key)
  end
end
